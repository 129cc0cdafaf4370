"""Rows that executors write are those that the driver would, whatever comes twice or late."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.errors import StoreDiverged
from kernel.positions import Offsets, TopicId
from lake.layout import Lake
from lake.table_columns import DECODED
from lake.tables import Tables
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.decode.records import Decoder, decode_batches
from pipeline.executor import Executor, ExecutorChoice
from pipeline.log.log_task import TOLD, Facts, LogTask
from pipeline.log.staged_rows import Staged
from schemas.records import (
    Change,
    Decoded,
    KafkaRecord,
    Operation,
    RecordedEvent,
    Rejected,
    SourceMessage,
    TransactionBegin,
    TransactionEnd,
)
from schemas.registry import MemoryRegistry
from tests.support.lake.ingested import SilentBroker
from tests.support.lake.left_files import left_files

START = datetime(2013, 1, 1, tzinfo=UTC)
LAST = START + timedelta(minutes=60)
"""Events of a later time have another content."""
RAW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
STORE, SOURCE, TOPIC = "store", "shop", "shop.public.orders"
TOPICS = {"events.flight": "event", TOPIC: "change", "shop.transaction": "end"}
NEVER = {"public.orders": 10**6}
"""Transactions that stay open, so that nothing is folded: the log is what is compared."""

Spec = tuple[str, int, int, int, int, bool]
SPEC = st.tuples(
    st.sampled_from(sorted(TOPICS)),
    st.integers(0, 1),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 60),
    st.sampled_from([False] * 9 + [True]),
)


def decoded_of(record: KafkaRecord) -> Decoded | None:
    """Decode what `value_of` wrote."""
    told = json.loads(record.value or b"")
    order, row, minute, odd = told["order"], told["row"], told["minute"], told["odd"]
    at = START + timedelta(minutes=minute)
    kind = TOPICS[record.topic]
    if kind == "event":
        return event_of(record, (order - 1) * 4 + row, at, odd)
    if kind == "end" and odd:
        return TransactionBegin(source=SOURCE, transaction_id=f"t{order}")
    if kind == "end":
        return TransactionEnd(
            source=SOURCE,
            transaction_id=f"t{order}",
            commit_lsn=order * 100,
            counts=NEVER,
            committed_at=at,
        )
    if odd:
        return SourceMessage(
            source=SOURCE,
            prefix="penstock.ddl" if row > 2 else "other",
            content="{}",
            transaction_id=f"t{order}",
            lsn=order * 100 + row,
            commit_order=order * 100,
            total_order=row,
            committed_at=at,
            schema_id=3,
            value=b"message",
        )
    return Change(
        source=SOURCE,
        table="public.orders",
        operation=Operation.UPDATE,
        transaction_id=f"t{order}",
        lsn=order * 100 + row,
        # A message of another application may have come in between, which a restart forgets.
        commit_order=order * 100 - (50 if minute == 7 else 0),
        total_order=row,
        snapshot=minute == 60,
        committed_at=at,
        event_time=at,
        schema_id=1,
        key_schema_id=2,
        key=f"k{row}".encode(),
        value=record.value or b"",
    )


def event_of(record: KafkaRecord, position: int, at: datetime, odd: bool) -> Decoded | None:
    if odd and position % 2:
        return None
    if odd:
        return Rejected(record=record, stage="decode", reason=f"odd {position}")
    return RecordedEvent(
        store_id=STORE,
        position=position,
        id=UUID(int=position),
        stream=f"flight-{position % 3}",
        version=position,
        category="flight" if position % 5 else "gate",
        type="departed",
        schema_id=4,
        data_format=0,
        data=b"\0\0\0\0\4" + str(position).encode() + (b"other" if at > LAST else b""),
        subject=None,
        key_id=None,
        metadata={},
        tags=("a",),
        occurred_at=at,
        recorded_at=START,
    )


@dataclass(frozen=True)
class Told:
    """A router to `decoded_of`; a topic of its own is not claimed."""

    def decoder(self, topic: str) -> Decoder | None:
        return decoded_of if topic in TOPICS else None


def raw_of(specs: Sequence[Spec], first: Mapping[tuple[str, int], int]) -> list[dict[str, Any]]:
    """Lay out records; those of a partition have rising offsets."""
    offsets = dict(first)
    made = []
    for topic, partition, order, row, minute, odd in specs:
        place = topic, 0 if TOPICS[topic] == "end" else partition
        offsets[place] = offsets.get(place, 0) + 1
        position = (order - 1) * 4 + row
        headers = {"store_id": STORE.encode(), "position": str(position).encode()}
        told = {"order": order, "row": row, "minute": minute, "odd": odd}
        made.append(
            {
                "topic": place[0],
                "partition": place[1],
                "offset": offsets[place],
                "timestamp": START,
                "key": b"k",
                "value": json.dumps(told).encode(),
                "headers": [{"key": name, "value": value} for name, value in headers.items()]
                if odd
                else [],
            }
        )
    return made


class Executed:
    """A lake whose epochs are made in one of the two forms."""

    def __init__(self, root: Path, *, on_executors: bool) -> None:
        self.lake = Lake.at(root)
        self.tables = Tables()
        self.manifest = Manifest(self.lake, self.tables)
        self.ingest = Ingest(
            self.lake,
            self.tables,
            self.manifest,
            MemoryRegistry(),
            lateness=lambda _: timedelta(minutes=10),
            broker=SilentBroker(),
        )
        self.on_executors = on_executors

    def run(self, records: list[dict[str, Any]], ends: Offsets, *, share: int) -> Committed:
        bound = Bound(
            epoch=self.ingest.next_epoch,
            run_id="t",
            batch_id=0,
            start={},
            end=ends,
            topics={topic: TopicId(id="x", partitions=len(p)) for topic, p in ends.items()},
        )
        if self.on_executors:
            return self.ingest.run_epoch(bound, None, stage=partial(staged, records, share))
        batch = pa.RecordBatch.from_pylist(records, schema=RAW)
        rows = pa.Table.from_batches(decode_batches(iter([batch]), Told()), DECODED)
        return self.ingest.run_epoch(bound, lambda: rows)

    def rows(self, name: str) -> pa.Table | None:
        found = Tables().read(self.lake.path(name))
        if found is None:
            return None
        ordered = found.sort_by([(n, "ascending") for n in ("topic", "partition", "offset")])
        return ordered.drop_columns(["ingested_at"]).combine_chunks()


def staged(records: list[dict[str, Any]], share: int, facts: Facts) -> Staged:
    """Do what Spark does: a task takes `share` records of a partition, several batches each."""
    places = sorted({(r["topic"], r["partition"]) for r in records})
    told = [TOLD.empty_table()]
    task = LogTask(Told(), facts)
    for place in places:
        own = [r for r in records if (r["topic"], r["partition"]) == place]
        for first in range(0, len(own), share):
            some = own[first : first + share]
            batches = [pa.RecordBatch.from_pylist(s, RAW) for s in (some[:3], some[3:])]
            told.append(pa.Table.from_batches(task(iter(batches)), TOLD))
    return Staged.of(facts, pa.concat_tables(told))


def remembered(done: Committed) -> object:
    """Return what an epoch remembers, but for moments of this machine's clock."""
    kept = json.loads(done.progress)
    for each in kept["quarantine"].values():
        each.pop("at")
    return kept, {n: c for n, c in done.counts.items() if not n.startswith("freshness")}


FORMS = ("driver", "spark")
TABLES = (f"log/events/{STORE}", f"log/changes/{SOURCE}", "quarantine/records")


def compared(folder: Path, batches: Sequence[Sequence[Spec]], *, share: int) -> Executed:
    """Make the same epochs in both forms and compare all that they leave."""
    driver, spark = (Executed(folder / name, on_executors=name == "spark") for name in FORMS)
    first: dict[tuple[str, int], int] = {}
    for specs in batches:
        records = raw_of(specs, first)
        for record in records:
            first[record["topic"], record["partition"]] = record["offset"]
        ends: Offsets = {t: {"0": 10**6, "1": 10**6} for t in TOPICS}
        small, large = (form.run(records, ends, share=share) for form in (driver, spark))
        assert remembered(small) == remembered(large)
    for name in TABLES:
        own, other = driver.rows(name), spark.rows(name)
        assert own == other, name
        assert own is None or own.schema.equals(other.schema), name
    assert left_files(spark.lake) == []
    return spark


def stream(*, minute: int = 3) -> list[Spec]:
    """Return transactions in their order, of which a few rows are odd ones."""
    return [
        (topic, row % 2, order, row, minute, row == 4)
        for order in range(1, 9)
        for topic in sorted(TOPICS)
        for row in range(1, 5)
    ]


def test_p1_what_a_connector_sends_again_is_left_out_of_files_of_executors(
    tmp_path: Path,
) -> None:
    """Files with rows of before among new ones are written again, those of nothing else go."""
    again = stream()
    batches = [again[:40], again[20:60], again[:40], again]
    made = compared(tmp_path, batches, share=7)
    changes = made.rows(f"log/changes/{SOURCE}")
    assert changes is not None
    places = changes.filter(pc.equal(changes["table"], "public.orders"))
    assert places.num_rows == len({(order, row) for _, _, order, row, _, odd in again if not odd})


def test_p4_a_change_has_the_place_of_its_transaction_whoever_writes_it(tmp_path: Path) -> None:
    """After a restart a connector may forget a commit before: a later row then says less."""
    orders = [(TOPIC, 0, 5, row, 7 if row == 3 else 8, False) for row in range(1, 5)]
    made = compared(tmp_path, [orders[:2], orders[2:]], share=2)
    changes = made.rows(f"log/changes/{SOURCE}")
    assert changes is not None
    assert changes["commit_order"].to_pylist() == [500] * 4


def test_p6_executors_judge_lateness_by_the_epoch_before(tmp_path: Path) -> None:
    early = [("events.flight", 0, 1, 1, 50, False), ("events.flight", 1, 2, 2, 50, False)]
    late = [("events.flight", 0, 3, 3, 39, False), ("events.flight", 0, 4, 1, 40, False)]
    made = compared(tmp_path, [early, late], share=5)
    events = made.rows(f"log/events/{STORE}")
    assert events is not None
    assert events.filter(events["closed_late"])["position"].to_pylist() == [11]


@pytest.mark.parametrize("form", FORMS)
def test_p9_events_of_one_position_are_compared_whoever_writes_them(
    tmp_path: Path, form: str
) -> None:
    made = Executed(tmp_path, on_executors=form == "spark")
    first = [("events.flight", 0, order, 1, 5, False) for order in (1, 2, 3, 1)]
    ends: Offsets = {"events.flight": {"0": 10**6, "1": 10**6}}
    done = made.run(raw_of(first, {}), ends, share=2)
    assert (done.counts["events"], done.counts["duplicates"]) == (3, 1)
    other = [("events.flight", 1, 5, 1, 5, False), ("events.flight", 1, 5, 1, 61, False)]
    with pytest.raises(StoreDiverged, match="position 17"):
        made.run(raw_of(other, {}), ends, share=1)


def test_what_executors_decode_tells_how_large_records_are(tmp_path: Path) -> None:
    """One large record sends epochs to them; they come back to the driver when it is over."""
    records = raw_of(stream(), {})
    facts = Facts(lake=Lake.at(tmp_path), epoch=1, now=START, attempt="a")
    made = staged(records, 7, facts)
    batch = pa.RecordBatch.from_pylist(records, schema=RAW)
    decoded = pa.Table.from_batches(decode_batches(iter([batch]), Told()), DECODED)
    assert made.rows == decoded.num_rows
    assert decoded.nbytes / 2 < made.decoded_bytes < decoded.nbytes * 2
    choice = ExecutorChoice(asked=Executor.AUTO, driver_bytes=1_000 * made.decoded_bytes)
    choice.refused(made.rows)
    assert choice.of(made.rows) is Executor.SPARK
    stage = choice.noting(lambda facts: made)
    for _ in range(20):
        assert stage(facts) is made
    assert choice.of(made.rows) is Executor.DRIVER


@pytest.mark.matrix
@settings(max_examples=60)
@given(
    st.lists(st.lists(SPEC, max_size=60), min_size=1, max_size=3),
    st.booleans(),
    st.integers(1, 30),
)
def test_p1_executors_write_the_rows_that_the_driver_would(
    batches: list[list[Spec]], sort: bool, share: int
) -> None:
    with TemporaryDirectory() as folder:
        ordered = [sorted(specs, key=lambda s: s[2:4]) if sort else specs for specs in batches]
        compared(Path(folder), ordered, share=share)
