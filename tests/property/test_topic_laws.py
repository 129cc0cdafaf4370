"""Records of an external topic are in its log once and in its typed table as an oracle reads them.

Whatever they hold, however they are split into epochs, whoever decodes them, and whatever dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernel import failpoints
from kernel.positions import Epoch, Offsets, TopicId
from lake.layout import Lake, topics_log
from lake.table_columns import DECODED
from lake.tables import Tables
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.decode.records import Decoder, decode_batches
from pipeline.decode.topic_decoder import TopicDecoder
from pipeline.log.log_task import TOLD, Facts, LogTask
from pipeline.log.staged_rows import Staged
from pipeline.typed.tables import TypedTables
from pipeline.typed.topics import typed_topic
from projections.run.catalog import LIVE, PROJECTION, Entry
from projections.run.catalog import SOURCE as SOURCE_KIND
from projections.run.endings import endings_of
from projections.run.projection_rounds import Projecting
from projections.sql.statements.parse import parse_script
from projections.sql.statements.topics import shape_of
from schemas.registry import MemoryRegistry
from tests.property.test_executors import RAW
from tests.support.lake.handmade import HandMade, NoSpark
from tests.support.lake.ingested import IngestedLake, SilentBroker
from tests.support.services.tier import examples

START = datetime(2013, 1, 1, tzinfo=UTC)
SOURCE = """
CREATE SOURCE pings (device BIGINT, id STRING, at TIMESTAMP, v DECIMAL(6, 2), s INT) WITH (
  topic = 'ext.pings', format = 'json', key = device, event_time = at, identity = id,
  deleted = 's = 9', lateness = '10 minutes'
);
"""
TOPIC = "ext.pings"
(DECL,) = parse_script(SOURCE).sources
KINDS = ("plain", "plain", "more", "gone", "garbage", "wrong", "keyless", "noon", "tombstone")
Spec = tuple[str, int, int, int]
"""Kind, device, minute of the event and of its arrival."""
SPEC = st.tuples(
    st.sampled_from(KINDS), st.integers(1, 3), st.integers(0, 30), st.sampled_from([0, 0, 0, 1])
)
STEPS = (*failpoints.EPOCH_STEPS, failpoints.STAGED_BEFORE_COMMIT)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def raw_of(spec: Spec, partition: int, offset: int) -> dict[str, Any]:
    """Lay a record out as Spark reads it. Records of one device and minute have one `id`."""
    kind, device, minute, _ = spec
    document: dict[str, Any] = {"device": device, "id": f"{device}-{minute}", "v": minute / 4}
    document["at"] = (START + timedelta(minutes=minute)).isoformat()
    match kind:
        case "more":
            document |= {"unknown": [1], "v": None, "id": None}
        case "gone":
            document |= {"s": 9}
        case "wrong":
            document |= {"v": "1.234"}
        case "keyless":
            document |= {"device": None}
        case "noon":
            document |= {"at": "noon", "id": None}
    value = b"{" if kind == "garbage" else json.dumps(document).encode()
    return {
        "topic": TOPIC,
        "partition": partition,
        "offset": offset,
        "timestamp": arrived(offset),
        "key": str(device).encode(),
        "value": None if kind == "tombstone" else value,
        "headers": [{"key": "h", "value": b"\x01"}],
    }


def arrived(offset: int) -> datetime:
    return START + timedelta(hours=1, seconds=offset)


class World(IngestedLake):
    """A lake that reads records which are here, split into epochs by their offsets."""

    def __init__(self, root: Path, records: Sequence[Sequence[Spec]], *, executors: bool) -> None:
        self.lake = Lake.at(root)
        self.executors = executors
        self.raw = [
            raw_of(spec, partition, offset)
            for partition, own in enumerate(records)
            for offset, spec in enumerate(own)
        ]
        shape = shape_of(DECL)
        assert shape is not None
        self.shape = shape
        self.schemas = MemoryRegistry()
        self.restart()

    def decoder(self, topic: str) -> Decoder | None:
        return TopicDecoder(self.shape, self.schemas) if topic == TOPIC else None

    def made_ingest(self) -> Ingest:
        return Ingest(
            self.lake,
            self.tables,
            self.manifest,
            self.schemas,
            lateness=lambda _: timedelta(minutes=10),
            broker=SilentBroker(),
        )

    def _batches(self, bound: Bound) -> Iterator[pa.RecordBatch]:
        rows = [
            row
            for row in self.raw
            if bound.start[TOPIC][str(row["partition"])]
            <= row["offset"]
            < bound.end[TOPIC][str(row["partition"])]
        ]
        yield pa.RecordBatch.from_pylist(rows, schema=RAW)

    def decoded(self, bound: Bound) -> pa.Table:
        return pa.Table.from_batches(decode_batches(self._batches(bound), self), DECODED)

    def finish(self, bound: Bound) -> Committed:
        if not self.executors:
            return super().finish(bound)

        def stage(facts: Facts) -> Staged:
            told = [*LogTask(self, facts)(self._batches(bound))]
            return Staged.of(facts, pa.Table.from_batches(told, TOLD))

        return self.ingest.run_epoch(bound, None, stage=stage)

    def read(self, ends: Sequence[Offsets]) -> None:
        """Make epochs up to these offsets, and typed rows after each other one."""
        start: Offsets = {TOPIC: {"0": 0, "1": 0}}
        for number, end in enumerate(ends):
            last = self.ingest.last
            begun = last.end if last else start
            ids = {} if last else {TOPIC: TopicId("an id", 2)}
            epoch = self.ingest.next_epoch
            bound = partial(Bound, epoch=epoch, run_id="t", batch_id=0, topics=ids)
            self.crashing(partial(self.finish, bound(start=begun, end=end)))
            if number % 2:
                self.typed()

    def crashing(self, work: Any) -> None:
        """Do something again, as a new process, if it crashes."""
        epoch = self.ingest.next_epoch
        try:
            work()
        except failpoints.Crash:
            failpoints.disarm()
            self.recover()
            if self.ingest.next_epoch == epoch:
                work()
        assert self.ingest.next_epoch == epoch + 1

    def typed(self) -> pa.Table:
        """Bring the typed table to the newest epoch; crashes there are made up for."""
        last = self.ingest.last
        assert last is not None
        for _ in range(2):
            typed = TypedTables(self.lake, Tables(), self.schemas)
            try:
                typed.add_topic(self.shape, endings_of(self.shape), last.epoch)
                break
            except failpoints.Crash:
                failpoints.disarm()
        found = Tables().read(self.lake.path(typed_topic("pings")))
        assert found is not None
        return found

    def logged(self) -> list[Mapping[str, Any]]:
        found = Tables().read(self.lake.path(topics_log("pings")))
        return [] if found is None else found.to_pylist()


def oracle(records: Sequence[Sequence[Spec]], epochs: Sequence[Offsets]) -> list[dict[str, Any]]:
    """Return the typed rows, in the order in which they were read, without the product's code."""
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    for number, end in enumerate(epochs):
        before = epochs[number - 1][TOPIC] if number else {"0": 0, "1": 0}
        for partition, own in enumerate(records):
            for offset in range(before[str(partition)], end[TOPIC][str(partition)]):
                row = typed_row(own[offset], partition, offset)
                if row is None or (row["id"] is not None and row["id"] in seen):
                    continue
                seen.add(row["id"])
                rows.append(row)
    return rows


def typed_row(spec: Spec, partition: int, offset: int) -> dict[str, Any] | None:
    kind, device, minute, _ = spec
    if kind in ("garbage", "wrong", "keyless"):
        return None
    bare = kind in ("tombstone", "noon")
    at = arrived(offset) if bare else START + timedelta(minutes=minute)
    v: Decimal | None = Decimal(minute * 25).scaleb(-2)
    v = None if kind in ("tombstone", "more") else v
    nameless = kind in ("tombstone", "more", "noon")
    return {
        "device": device,
        "id": None if nameless else f"{device}-{minute}",
        "at": at,
        "v": v,
        "s": 9 if kind == "gone" else None,
        "kafka_partition": partition,
        "kafka_offset": offset,
        "kafka_timestamp": arrived(offset),
        "kafka_key": str(device).encode(),
        "event_time_given": not bare,
        "ends_key": kind in ("tombstone", "gone"),
    }


def ends_of(records: Sequence[Sequence[Spec]], cuts: Sequence[tuple[int, int]]) -> list[Offsets]:
    lengths = [len(own) for own in records]
    found: list[Offsets] = []
    at = [0, 0]
    for cut in [*cuts, (99, 99)]:
        at = [
            min(length, place + step) for length, place, step in zip(lengths, at, cut, strict=True)
        ]
        found.append({TOPIC: {str(p): place for p, place in enumerate(at)}})
    return found


@given(
    records=st.tuples(st.lists(SPEC, max_size=12), st.lists(SPEC, max_size=12)),
    cuts=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=4),
    executors=st.booleans(),
    crash=st.sampled_from([None, *STEPS, failpoints.TYPED_AFTER_TOPIC]),
    hit=st.integers(1, 3),
)
@example(
    records=([("plain", 1, 5, 0)] * 3 + [("tombstone", 1, 0, 0)], [("plain", 1, 5, 0)]),
    cuts=[(1, 0), (1, 1)],
    executors=True,
    crash=failpoints.TYPED_AFTER_TOPIC,
    hit=1,
)
@settings(max_examples=examples(5, matrix=25), deadline=None)
def test_p1_p8_records_are_once_in_the_log_or_in_quarantine_and_typed_as_an_oracle_reads_them(
    records: tuple[list[Spec], list[Spec]],
    cuts: list[tuple[int, int]],
    executors: bool,
    crash: str | None,
    hit: int,
) -> None:
    ends = ends_of(records, cuts)
    with TemporaryDirectory() as folder:
        world = World(Path(folder), records, executors=executors)
        if crash is not None:
            failpoints.arm(crash, hit=hit)
        world.read(ends)
        typed = world.typed()
        failpoints.disarm()
        usable = oracle(records, ends)
        names = list(typed_row(("plain", 1, 1, 0), 0, 0) or {})
        order = [("_epoch", "ascending"), ("kafka_partition", "ascending")]
        rows = typed.sort_by([*order, ("kafka_offset", "ascending")])
        assert rows.select(names).to_pylist() == usable
        logged = world.logged()
        places = sorted((row["partition"], row["offset"]) for row in logged)
        spoilt = Tables().read(world.lake.quarantine)
        refused = [] if spoilt is None else spoilt.to_pylist()
        places += [(row["partition"], row["offset"]) for row in refused]
        assert sorted(places) == [(p, o) for p, own in enumerate(records) for o in range(len(own))]
        assert {row["topic_id"] for row in logged} <= {"an id"}
        raw = {(row["partition"], row["offset"]): row for row in world.raw}
        for row in [*logged, *refused]:
            was = raw[row["partition"], row["offset"]]
            assert (row["key"], row["value"]) == (was["key"], was["value"])
            assert json.loads(row["headers"]) == {"h": "01"}
        assert all(row["reason"] for row in refused)


def test_another_declaration_has_the_typed_rows_made_anew_from_the_log(tmp_path: Path) -> None:
    records = [("plain", 1, 5, 0), ("plain", 2, 6, 0)], [("gone", 1, 7, 0)]
    world = World(tmp_path, records, executors=False)
    world.read(ends_of(records, [(1, 0)]))
    assert world.typed().num_rows == 3
    wider = SOURCE.replace("v DECIMAL(6, 2)", "v DOUBLE").replace("deleted = 's = 9', ", "")
    shape = shape_of(parse_script(wider).sources[0])
    assert shape is not None
    world.shape = shape
    rows = world.typed()
    assert rows.schema.field("v").type == pa.float64()
    assert sorted(rows["v"].to_pylist()) == [1.25, 1.5, 1.75]
    assert not any(rows["ends_key"].to_pylist())


def test_what_comes_behind_the_watermark_by_more_than_its_lateness_is_late(tmp_path: Path) -> None:
    records = [("plain", 1, 30, 0), ("plain", 2, 1, 0), ("plain", 3, 25, 0)], [("plain", 1, 29, 0)]
    world = World(tmp_path, records, executors=False)
    world.read(ends_of(records, [(1, 1)]))
    late = {row["device"]: row["_late"] for row in world.typed().to_pylist() if row["_epoch"] == 2}
    assert late == {2: True, 3: False}
    assert world.ingest.last is not None
    assert world.ingest.last.epoch == Epoch(2)


def test_a_projection_over_a_topic_is_kept_from_the_declaration_on(tmp_path: Path) -> None:
    records = [("plain", 1, 5, 0), ("plain", 2, 6, 0), ("garbage", 1, 1, 0)], [("more", 1, 7, 0)]
    world = World(tmp_path, records, executors=False)
    made = HandMade(world.lake)
    counted = (
        "CREATE PROJECTION heard WITH (key = device, freshness = '1 second') AS "
        "SELECT device, COUNT(*) AS n FROM (SELECT device FROM STREAM pings) AS p GROUP BY device;"
    )
    for kind, name, text in ((SOURCE_KIND, "pings", SOURCE), (PROJECTION, "heard", counted)):
        entry = Entry(kind=kind, name=name, generation=1, status=LIVE, text=text)
        made.deployed.put([entry])
    shape = [("device", pa.int64()), ("n", pa.int64()), ("_epoch", pa.int64())]
    made.run("heard", pa.schema(shape).empty_table(), 0)
    projecting = Projecting(NoSpark(), world.lake, world.schemas, on_run=lambda *_: None)
    for ends in ends_of(records, [(1, 0)]):
        world.read([ends])
        projecting.step()
        state = projecting.states["heard"]
        assert (state.epoch, state.error) == (world.ingest.next_epoch - 1, None)
        state.due_at = 0.0
    found = Tables().read(world.lake.path("projection/heard"), columns=["device", "n"])
    assert found is not None
    assert sorted(tuple(row.values()) for row in found.to_pylist()) == [(1, 2), (2, 1)]
