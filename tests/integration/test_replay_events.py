"""Events are replayed into a topic of a real broker and into another store, through kills."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from typer.testing import CliRunner, Result

from apps.cli import build
from apps.settings import Settings
from kernel.errors import Conflict, InvalidRequest, NotFound, UnknownType
from lake.tables import Tables
from schemas.json_codec import JsonCodec
from schemas.wire import HEADER_BYTES, schema_id_of
from tests.support.lake.retold import Origin, appended, replayed, replaying, shown
from tests.support.lake.topic_reading import records_of
from tests.support.services.http import service_in_thread
from tests.support.services.receivers import http_receiver
from tests.support.services.waiting import until

DAYS = timedelta(days=3)


@pytest.fixture
def origin(postgres_dsn: str, tmp_path: Path) -> Origin:
    found = Origin(dsn=postgres_dsn, lake=tmp_path / "lake")
    found.live()
    return found


class Reader:
    """The warm broker and one topic on it."""

    def __init__(self, stack: Settings, origin: Origin, prefix: str, folder: Path) -> None:
        self.topic = f"{prefix}replayed"
        self.bootstrap = stack.required("kafka.bootstrap")
        self.origin, self.folder, self.prefix = origin, folder, prefix

    def environment(self, **further: str) -> dict[str, str]:
        return self.origin.environment(
            PENSTOCK_KAFKA_BOOTSTRAP=self.bootstrap,
            PENSTOCK_WORKSPACE_NAME=self.prefix.rstrip("."),
            **further,
        )

    def replay(self, *arguments: str) -> dict[str, Any]:
        return replayed(self.environment(), "--to", f"topic:{self.topic}", *arguments)

    def killed_at(self, failpoint: str, hit: int, *arguments: str) -> None:
        environment = self.environment(PENSTOCK_FAILPOINTS=f"{failpoint}=kill@{hit}")
        to = ("--to", f"topic:{self.topic}")
        with replaying(self.folder, environment, *to, *arguments) as process:
            assert process.wait(60) == -signal.SIGKILL, process.communicate()

    def records(self) -> list[Message]:
        return records_of(self.bootstrap, self.topic, f"{self.topic}.reader")

    def positions(self) -> list[int]:
        return sorted(int(headers(each)["penstock-origin-position"]) for each in self.records())


@pytest.fixture
def reader(stack: Settings, origin: Origin, prefix: str, tmp_path: Path) -> Reader:
    return Reader(stack, origin, prefix, tmp_path)


def headers(message: Message) -> dict[str, str]:
    return {name: value.decode() for name, value in message.headers() or ()}


@pytest.mark.matrix
def test_p10_a_topic_has_each_event_once_with_its_bytes_key_and_origin(reader: Reader) -> None:
    # Twenty a tenth of a second, so that transactions are small, and several are there.
    pace = ("--shift", "+3d", "--rate", "200/s", "--partitions", "3")
    reader.killed_at("sink.before_commit", 3, *pace)
    first = reader.positions()
    assert first
    assert first == list(range(1, len(first) + 1))
    reader.killed_at("sink.after_commit", 2, *pace)
    assert len(reader.positions()) > len(first)
    done = reader.replay(*pace)
    rows = reader.origin.logged()
    assert done["sent"] + done["there_before"] == done["events"] == len(rows) == 61
    records = reader.records()
    assert reader.positions() == [row["position"] for row in rows]
    by_position = {int(headers(each)["position"]): each for each in records}
    for row in rows:
        record = by_position[row["position"]]
        told = headers(record)
        assert (record.key(), record.value()) == (row["stream"].encode(), row["data"])
        for name in ("occurred_at", "recorded_at"):
            assert datetime.fromisoformat(told[name]) == row[name] + DAYS
            origin_time = told[f"penstock-origin-{name.replace('_', '-')}"]
            assert datetime.fromisoformat(origin_time) == row[name]
        assert told["id"] == row["event_id"]
        assert told["penstock-origin-store"] == row["store_id"]
        assert told["penstock-silent"] == "true"
        assert json.loads(told["metadata"]) == json.loads(row["metadata"])
        assert json.loads(told["tags"]) == row["tags"]
    for each in {record.partition() for record in records}:
        of_it = [int(headers(r)["position"]) for r in records if r.partition() == each]
        assert of_it == sorted(of_it), "each partition has its events in order"
    assert len({record.partition() for record in records}) > 1
    framed = by_position[2].value() or b""
    schema = reader.origin.registry.schema(schema_id_of(framed))
    assert JsonCodec(schema).decode(framed[HEADER_BYTES:])["n"] == 1
    assert reader.replay(*pace)["sent"] == 0
    with pytest.raises(Conflict, match="has a replay with another shift_s"):
        reader.replay("--shift", "+4d")


@pytest.mark.matrix
def test_a_topic_goes_on_where_the_range_ended(reader: Reader) -> None:
    assert reader.replay("--category", "order", "--until", "20", "--effects")["sent"] == 10
    assert reader.replay("--category", "order", "--effects")["sent"] == 21
    told = [headers(each) for each in reader.records()]
    assert {each["category"] for each in told} == {"order"}
    assert not any("penstock-silent" in each for each in told)


def test_p10_a_range_is_sent_with_its_gaps_and_times_moved_through_a_kill(reader: Reader) -> None:
    pace = ("--from", "11", "--until", "51", "--starting", "2030-01-01T00:00:00Z")
    pace = (*pace, "--gaps", "occurred", "--speed", "20x")
    reader.killed_at("sink.after_commit", 9, *pace)
    there = len(reader.positions())
    assert 0 < there < 41
    done = reader.replay(*pace)
    assert (done["sent"], done["there_before"]) == (41 - there, there)
    assert reader.positions() == [*range(11, 52)]
    rows = {row["position"]: row for row in reader.origin.logged()}
    by_position = {int(headers(each)["position"]): each for each in reader.records()}
    moved = datetime(2030, 1, 1, tzinfo=UTC) - rows[11]["recorded_at"]
    for position, record in by_position.items():
        for moment in ("occurred_at", "recorded_at"):
            told = datetime.fromisoformat(headers(record)[moment])
            assert told == rows[position][moment] + moved
    # Each process has a schedule of its own, a twentieth of a second for each second.
    assert done["seconds"] >= 0.05 * (41 - there - 1)
    with pytest.raises(Conflict, match="has a replay with another"):
        reader.replay(*pace[2:])


def test_a_topic_that_is_made_takes_the_largest_record(reader: Reader) -> None:
    # More than the broker of the tests takes by itself.
    largest = str(128 * 2**20)
    environment = reader.environment(PENSTOCK_KAFKA_MAX_RECORD_BYTES=largest)
    replayed(environment, "--to", f"topic:{reader.topic}", "--until", "1")
    resource = ConfigResource(ResourceType.TOPIC, reader.topic)
    admin = AdminClient({"bootstrap.servers": reader.bootstrap})
    told = admin.describe_configs([resource])[resource].result(20)
    assert told["max.message.bytes"].value == largest


@pytest.fixture
def target(new_database: Callable[..., str]) -> str:
    return new_database()


def into(origin: Origin, http: httpx.Client, *arguments: str) -> dict[str, Any]:
    to = f"store:{str(http.base_url).rstrip('/')}"
    return replayed(origin.environment(), "--to", to, *arguments)


def test_p10_another_store_has_each_event_once_and_sends_none_of_them(
    origin: Origin, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "other"
    (workspace / "deliveries").mkdir(parents=True)
    monkeypatch.setenv("A_SECRET", "whsec_" + "A" * 32)
    with http_receiver() as receiver:
        lines = ['kind = "webhook"', f'url = "{receiver.url}"', 'secret = "env:A_SECRET"']
        (workspace / "deliveries/shop.toml").write_text("\n".join([*lines, "start = 0"]))
        with service_in_thread(target, workspace=workspace) as http:
            appended(http, "order-0", {"type": "opened", "data": {"own": True}})
            to = f"store:{str(http.base_url).rstrip('/')}"
            # All of them would take half a minute.
            paced = ("--to", to, "--shift", "+3d", "--rate", "2/s")
            with replaying(tmp_path, origin.environment(), *paced) as process:
                until(lambda: len(shown(http)) > 3, "some events are there")
                process.send_signal(signal.SIGKILL)
                process.wait(30)
            before = len(shown(http)) - 1
            assert before < 60
            done = into(origin, http, "--shift", "+3d")
            assert (done["there_before"], done["sent"], done["left_out"]) == (
                before,
                60 - before,
                1,
            )
            assert into(origin, http, "--shift", "+3d")["sent"] == 0
            until(
                lambda: http.get("/v1/subscriptions/shop").json().get("checkpoint") == 61,
                "the deliverer has seen all",
            )
            assert len(receiver.received) == 1, "what is the store's own was sent, nothing else"
            compare(origin.events, shown(http)[1:])
            with pytest.raises(Conflict, match="from a replay with another selection, other"):
                into(origin, http, "--shift", "+4d")


def compare(origin: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Compare what both services show: all but positions, versions and schema ids are as before."""
    wanted = [each for each in origin if not each["stream"].endswith("$metadata")]
    assert [each["id"] for each in found] == [each["id"] for each in wanted]
    for before, after in zip(wanted, found, strict=True):
        for name in ("stream", "type", "data", "tags"):
            assert after[name] == before[name]
        times = [datetime.fromisoformat(each["occurred_at"]) for each in (before, after)]
        assert times[1] - times[0] == DAYS
        mark = after["metadata"].pop("penstock_replayed")
        assert after["metadata"] == before["metadata"] | {"penstock_silent": True}
        assert (mark["position"], mark["version"]) == (before["position"], before["version"])


@pytest.mark.matrix
def test_p10_effects_are_let_through_when_they_are_asked_for(origin: Origin, target: str) -> None:
    with service_in_thread(target) as http:
        into(origin, http, "--effects", "--stream", "order-0", "--until", "30")
        assert len(shown(http)) == 3
        assert not any("penstock_silent" in each["metadata"] for each in shown(http))


@pytest.mark.matrix
def test_the_store_that_is_read_is_refused_and_so_is_its_copy(origin: Origin) -> None:
    with (
        service_in_thread(origin.dsn, registry=origin.registry) as http,
        pytest.raises(Conflict, match="it is the one that is read, or a copy of it"),
    ):
        into(origin, http)


def run(origin: Origin, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setenv("PENSTOCK_LAKE_PATH", str(origin.lake))
    return CliRunner().invoke(build(), ["replay", "events", *arguments])


@pytest.mark.matrix
def test_p10_another_lake_has_each_event_once_with_times_moved(
    origin: Origin, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    chosen = ("--to", f"lake:{place}", "--shift", "+3d")
    first = replayed(origin.environment(), *chosen, "--until", "25", "--rate", "1000/s")
    assert (first["sent"], first["there_before"]) == (25, 0)
    assert replayed(origin.environment(), *chosen)["sent"] == 61 - 25
    assert replayed(origin.environment(), *chosen)["sent"] == 0
    found = Tables().read(str(place / "events"))
    assert found is not None
    rows, logged = found.sort_by("position").to_pylist(), origin.logged()
    assert [each["position"] for each in rows] == [*range(1, 62)]
    for row, was in zip(rows, logged, strict=True):
        for moment in ("occurred_at", "recorded_at"):
            assert row[f"origin_{moment}"] == was[moment]
            assert row[moment] - was[moment] == DAYS
        assert (row["event_id"], row["bytes"]) == (was["event_id"], was["data"])
    data = {each["id"]: each["data"] for each in origin.events}
    assert all(json.loads(row["data"]) == data[row["event_id"]] for row in rows)
    with pytest.raises(Conflict, match="has something else"):
        replayed(origin.environment(), "--to", f"lake:{place}", "--shift", "+4d")
    with pytest.raises(Conflict, match="is the lake that is read"):
        replayed(origin.environment(), "--to", f"lake:{origin.lake}")


def test_what_would_be_sent_is_told_before(origin: Origin, monkeypatch: pytest.MonkeyPatch) -> None:
    to = ("--to", "topic:elsewhere", "--dry-run")
    done = run(origin, monkeypatch, *to, "--gaps", "occurred", "--speed", "10x", "--json")
    plan = json.loads(done.output)
    assert (plan["events"], plan["first"], plan["last"], plan["left_out"]) == (61, 1, 61, 0)
    assert plan["seconds"] > 5.9, "sixty seconds, ten times as quick, and the gap to today"
    capped = ("--gaps", "occurred", "--speed", "10x", "--max-gap", "1s", "--json")
    assert json.loads(run(origin, monkeypatch, *to, *capped).output)["seconds"] == pytest.approx(
        6.9
    )
    starting = run(origin, monkeypatch, *to, "--starting", "2030-01-01", "--json")
    assert json.loads(starting.output)["moved"]["recorded"][0].startswith("2030-01-01")
    assert "61 events, positions 1 to 61, would go to" in run(origin, monkeypatch, *to).output


REFUSED: tuple[tuple[str, type[Exception], str], ...] = (
    ("--until 62", InvalidRequest, "62 is beyond the log, which ends at 61"),
    ("--from 62", InvalidRequest, "62 is beyond the log, which ends at 61"),
    ("--from 9 --until 8", InvalidRequest, "ends at 8, before it begins at 9"),
    ("--category nothing", NotFound, "no event of the log is selected"),
    ("--from 2200-01-01", NotFound, "no event of the log is selected"),
    ("--until savepoint:none", NotFound, "no savepoint none is kept"),
    ("--shift +500000w", InvalidRequest, "would leave the years 1 to 9999"),
    ("--from-store none", NotFound, "the lake has no events of store none"),
)


@pytest.mark.matrix
def test_what_cannot_be_is_refused_with_its_reason(
    origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, kind, said in REFUSED:
        to = ("--to", "topic:elsewhere", "--dry-run")
        done = run(origin, monkeypatch, *to, *arguments.split())
        assert isinstance(done.exception, kind), arguments
        assert said in str(done.exception)
    for name in ("events.order", "other.events.order", "_schemas", "a b", ".."):
        done = run(origin, monkeypatch, "--to", f"topic:{name}")
        assert isinstance(done.exception, InvalidRequest), name


@pytest.mark.matrix
def test_a_target_that_refuses_an_event_names_it(
    origin: Origin, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = '{"type": "record", "name": "placed", "fields": [{"name": "total", "type": "int"}]}'
    with service_in_thread(target, mode="strict") as http:
        body = {"subject": "cart.placed", "schema": own}
        assert http.post("/v1/schemas", json=body).status_code == 201
        to = f"store:{str(http.base_url).rstrip('/')}"
        done = run(origin, monkeypatch, "--to", to)
        assert "the target refuses position 2, cart-1" in str(done.exception)
        assert not isinstance(done.exception, UnknownType | Conflict)
