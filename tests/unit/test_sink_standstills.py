"""What stops a sink, and only that one. Kafka stands still in memory; the lake is a real one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from apps.pipeline import sinks as wiring
from apps.settings import Setting, Settings, load
from kernel.errors import Incompatible, Misconfigured, Unavailable
from kernel.positions import DeltaVersion, Epoch, TopicId
from lake.layout import Lake
from lake.rows import SmallTables
from projections.run.catalog import DROPPED, LIVE, PROJECTION, Entry
from projections.serve.feed_places import FeedPlace
from projections.serve.row_changes import RowChange
from projections.serve.table_steps import Changes
from projections.sinks import projection_sink, sinks
from projections.sinks.awaited_sinks import AwaitedSinks
from projections.sinks.placed_transactions import KeyedRecord
from projections.sinks.sink_records import RecordForm
from projections.sinks.sink_transactions import SinkCursor
from schemas.registry import MemoryRegistry
from service.standstills import Standstill, of_pipeline
from tests.support.lake.handmade import words
from tests.support.lake.topic_sink import STATEMENT, SinkWorld


@dataclass
class Broker:
    """Topics, and what was sent to them. `fails` says what a transaction to a topic meets."""

    topics: dict[str, TopicId] = field(default_factory=dict)
    cursors: dict[tuple[str, str], SinkCursor] = field(default_factory=dict)
    sent: list[tuple[str, KeyedRecord]] = field(default_factory=list)
    fails: dict[str, tuple[Exception, bool]] = field(default_factory=dict)
    begun: int = 0

    def ids(self, names: Sequence[str]) -> dict[str, TopicId]:
        return {name: self.topics[name] for name in names if name in self.topics}

    def make(self, name: str, partitions: int, _: Mapping[str, str]) -> None:
        self.topics[name] = TopicId(f"{name}-id", partitions)

    def made(self, name: str) -> TopicId:
        return self.topics[name]

    def transactions(self, *_: object, **__: object) -> Transactions:
        self.begun += 1
        return Transactions(self)


@dataclass
class Transactions:
    """One producer's."""

    broker: Broker
    doubtful: bool = False

    def __post_init__(self) -> None:
        self.cursors = dict(self.broker.cursors)

    def send(self, records: Sequence[KeyedRecord], cursor: SinkCursor) -> None:
        if cursor.topic in self.broker.fails:
            error, self.doubtful = self.broker.fails[cursor.topic]
            raise error
        self.broker.sent += [(cursor.topic, record) for record in records]
        key = (cursor.projection, cursor.topic)
        self.cursors[key] = self.broker.cursors[key] = cursor

    def close(self) -> None:
        pass


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    made = Broker()
    monkeypatch.setattr(wiring, "KafkaTopics", lambda _: made)
    monkeypatch.setattr(wiring, "SinkTransactions", made.transactions)
    monkeypatch.setattr(sinks, "_PAUSES_S", (0.0,))
    monkeypatch.setattr(projection_sink, "_LOOK_S", 0.0)
    return made


@pytest.fixture
def world(broker: Broker, lake: Lake, tmp_path: Path) -> SinkWorld:
    nowhere = {
        name: Setting(value="http://127.0.0.1:1", origin="test")
        for name in ("kafka.bootstrap", "registry.url")
    }
    values = {**load(tmp_path).values, **nowhere}
    made = SinkWorld(Settings(tmp_path, values), lake, "w.")
    made.registry = MemoryRegistry()
    made.restart()
    made.deploy()
    made.first_run()
    made.send()
    return made


def error_of(world: SinkWorld, name: str = "report") -> str:
    world.sinks.step()
    return str(world.sinks.states[name].error)


def test_p10_a_topic_gets_no_row_of_what_was_dropped_under_the_name(
    world: SinkWorld, broker: Broker
) -> None:
    world.deploy(status=DROPPED)
    world.sinks.step()
    other = (
        world.text().replace(world.target, "topic:w.other").replace("key = 'id'", "key = 'word'")
    )
    world.made.deployed.put(
        [Entry(kind=PROJECTION, name="report", generation=2, status=LIVE, text=other)]
    )
    assert not world.sinks.step(), "the table has the rows of the one before"
    assert AwaitedSinks(world.lake, SmallTables()).missing(None) == (), "nobody waits for those"
    world.made.run("report", words((7, "z")), world.made.epoch(head=2), generation=2)
    assert AwaitedSinks(world.lake, SmallTables()).missing(None) != ()
    world.send()
    assert [topic for topic, _ in broker.sent] == ["w.report", "w.report", "w.other"]


@pytest.mark.parametrize("again", [lambda _: None, SinkWorld.restart], ids=["running", "restarted"])
def test_p10_a_key_that_a_swap_changes_is_refused_before_a_row_is_lost(
    world: SinkWorld, broker: Broker, again: Callable[[SinkWorld], None]
) -> None:
    text = world.text().replace("key = 'id'", "key = 'id, word'")
    world.made.deployed.put(
        [Entry(kind=PROJECTION, name="report", generation=2, status=LIVE, text=text)]
    )
    rows = words((1, "a"), (1, "b"), (2, "b"))
    world.made.run("report", rows, world.made.epoch(head=1), generation=2)
    place = broker.cursors["report", "w.report"].place
    again(world)
    assert "has records by the key id, and the key of report is id, word" in error_of(world)
    (told,) = of_pipeline({"sinks": world.sinks.documents()})
    assert told.command.startswith("Declare another topic as the sink, which gets all rows")
    assert len(broker.sent) == 2
    assert broker.cursors["report", "w.report"].place == place
    world.topic += "_2"
    world.made.deployed.put(
        [
            Entry(
                kind=PROJECTION,
                name="report",
                generation=2,
                status=LIVE,
                text=text.replace("w.report", world.topic),
            )
        ]
    )
    world.send()
    assert [topic for topic, _ in broker.sent[2:]] == [world.topic] * 3


@pytest.mark.parametrize("again", [lambda _: None, SinkWorld.restart], ids=["running", "restarted"])
def test_p10_a_topic_that_got_more_partitions_is_refused(
    world: SinkWorld, broker: Broker, again: Callable[[SinkWorld], None]
) -> None:
    broker.topics["w.report"] = broker.topics["w.report"]._replace(partitions=3)
    world.run(words((2, "B")))
    again(world)
    for more in ("", ", sink_partitions = '3'"):
        world.deploy(more)
        assert "topic w.report has 3 partitions, and had 1" in error_of(world)
    (told,) = of_pipeline({"sinks": world.sinks.documents()})
    assert "or delete this one: it is made again, and gets all rows" in told.command
    assert len(broker.sent) == 2
    broker.topics["w.report"] = TopicId("another", 3)
    world.send()
    assert len(broker.sent) == 4


def test_a_place_from_before_takes_the_key_and_the_partitions_that_there_are(
    world: SinkWorld, broker: Broker
) -> None:
    where = ("report", "w.report")
    broker.cursors[where] = replace(broker.cursors[where], key=None, partitions=None)
    broker.topics["w.report"] = broker.topics["w.report"]._replace(partitions=3)
    world.restart()
    world.run(words((2, "B")))
    world.send()
    kept = broker.cursors[where]
    assert (kept.key, kept.partitions, len(broker.sent)) == (("id",), 3, 3)


@pytest.mark.parametrize(
    ("before", "after"), [(pa.int32(), pa.int64()), (pa.string(), pa.binary())]
)
def test_a_key_of_another_type_is_another_key(before: pa.DataType, after: pa.DataType) -> None:
    registry = MemoryRegistry()

    def told(kind: pa.DataType, key: object) -> list[KeyedRecord]:
        form = RecordForm(projection="p", topic="t", key=("id",), registry=registry)
        changes = Changes(
            rows=[RowChange(key={"id": key}, old=None, new={"id": key})],
            behind=FeedPlace(table_id="0" * 8, version=DeltaVersion(1)),
            columns=pa.schema({"id": kind}),
            epoch=Epoch(1),
            generation=1,
        )
        return form.records(changes)

    values: dict[pa.DataType, object] = {pa.string(): "a", pa.binary(): b"a"}
    told(before, values.get(before, 1))
    told(before, values.get(before, 1))
    with pytest.raises(Incompatible, match="the key had other columns or types") as refused:
        told(after, values.get(after, 1))
    assert "another topic" in refused.value.remedy


def test_what_one_sink_meets_stays_its_own(world: SinkWorld, broker: Broker) -> None:
    other = STATEMENT.format(name="other", target="topic:w.other", more="")
    world.made.deployed.put(
        [Entry(kind=PROJECTION, name="other", generation=1, status=LIVE, text=other)]
    )
    world.made.run("other", words((7, "x")), world.made.epoch(head=1))
    for error in (Misconfigured("too large"), Unavailable("no registry"), TypeError("foreign")):
        broker.fails["w.other"] = (error, False)
        assert str(error) in error_of(world, "other")
        assert world.sinks.states["report"].error is None
    assert broker.begun == 1, "the others go on with what they had"
    broker.fails["w.other"] = (Unavailable("not known"), True)
    world.sinks.step()
    assert world.sinks.states["report"].error is None
    broker.fails.clear()
    world.send()
    assert broker.begun == 2
    assert [topic for topic, _ in broker.sent].count("w.other") == 1


def test_a_sink_that_fails_gets_later(
    world: SinkWorld, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(sinks, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(projection_sink, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sinks, "_PAUSES_S", (30.0,))
    broker.fails["w.report"] = (Misconfigured("too large"), False)
    world.run(words((2, "B")))
    lags = []
    for _ in range(4):
        world.sinks.step()
        lags.append(world.sinks.documents()["report"]["lag_s"])
        now[0] += 20
    assert lags == [0.0, 20.0, 40.0, 60.0]
    broker.fails.clear()
    world.send()
    assert world.sinks.documents()["report"]["lag_s"] == 0.0


def test_a_version_that_is_not_kept_leads_to_another_topic(world: SinkWorld) -> None:
    world.run(words((2, "B")))
    world.run(words((2, "C")))
    table = DeltaTable(world.lake.path("projection/report"))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert "is not kept any more" in error_of(world)
    (told,) = of_pipeline({"sinks": world.sinks.documents()})
    assert told.command == (
        "Declare another topic as the sink, which gets all rows. See: penstock projection status "
        "report"
    )


def test_sinks_that_cannot_be_looked_at_are_named_until_they_can(
    world: SinkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails before any one of them is asked: which there are cannot be read, say."""
    looks = 0

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal looks
            looks += 1
            told.append(of_pipeline({"loops": world.sinks.troubles}))
            if looks == 1:
                monkeypatch.setattr(sinks.Sinks, "_wanted", wanted)
            else:
                self.set()
            return True

    def torn(_: object) -> None:
        raise Unavailable("the catalog cannot be read")

    told: list[list[Standstill]] = []
    wanted = sinks.Sinks._wanted
    monkeypatch.setattr(sinks.Sinks, "_wanted", torn)
    world.sinks.run(Stop())
    (still,), mended = told
    assert (still.component, still.name, still.cause) == (
        "loop",
        "sinks",
        "the catalog cannot be read",
    )
    assert "penstock status" in still.command
    assert mended == []


@dataclass
class EventService:
    """Stands for the service of one event store, and for the next one's after it."""

    store: str = "first"
    told: list[tuple[str, str, str, bool]] = field(default_factory=list)

    def get(self, path: str) -> dict[str, object]:
        assert path == "/v1/store"
        return {"store": self.store, "head": len(self.told)}

    def post(self, _: str, document: object) -> None:
        for append in orjson.loads(orjson.dumps(document))["appends"]:
            for event in append["events"]:
                silent = event["metadata"].get("penstock_silent", False)
                word = event["data"]["word"]
                self.told.append((append["stream"], event["type"], word, silent))


class AlertWorld(SinkWorld):
    """One whose projection has a category of events as its sink."""

    @property
    def target(self) -> str:
        return "event:told"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> EventService:
    made = EventService()
    monkeypatch.setattr(wiring, "service_client", lambda _: made)
    return made


@pytest.fixture
def alerts(world: SinkWorld, service: EventService, broker: Broker) -> AlertWorld:
    made = AlertWorld(world.settings, world.lake, "w.")
    made.deploy()
    made.send()
    assert service.told == [("told-1", "raised", "a", True), ("told-2", "raised", "b", True)]
    assert broker.cursors["report", "event:told"].topic_id == "first"
    return made


@pytest.mark.parametrize("again", [lambda _: None, SinkWorld.restart], ids=["running", "restarted"])
def test_p10_another_event_store_gets_all_rows(
    alerts: AlertWorld, service: EventService, again: Callable[[SinkWorld], None]
) -> None:
    service.store, service.told = "second", []
    alerts.run(words((2, "B")))
    again(alerts)
    alerts.send()
    assert sorted(service.told) == [
        ("told-1", "raised", "a", True),
        ("told-2", "raised", "B", True),
    ]
    again(alerts)
    alerts.run(words((1, "A")))
    alerts.send()
    assert service.told[2:] == [("told-1", "changed", "A", False)]


def test_p10_a_place_that_names_no_store_is_one_of_the_store_that_there_is(
    alerts: AlertWorld, service: EventService, broker: Broker
) -> None:
    where = ("report", "event:told")
    broker.cursors[where] = replace(broker.cursors[where], topic_id="events")
    alerts.restart()
    alerts.run(words((1, "A")))
    alerts.send()
    assert service.told[2:] == [("told-1", "changed", "A", False)]
    assert broker.cursors[where].topic_id == "first"
