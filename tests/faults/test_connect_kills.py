"""Kafka Connect is killed with -9 while it reads: nothing is lost, nothing counts twice.

Promise P4: a committed source change appears exactly once. Connect may send a change again after a
crash; what is at or below the mark of its partition was seen before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from psycopg.conninfo import make_conninfo

from apps.settings import Settings
from kernel.errors import NotFound, Unavailable
from kernel.positions import Epoch
from lake.table_columns import DECODED
from pipeline.arrive.arrival import Arrival, sort_out
from pipeline.decode.records import row_of
from pipeline.order import places_of
from pipeline.position.cut import Cut
from pipeline.position.progress import Mark, Progress
from schemas.records import Change, Operation, TransactionEnd
from stack.control import kill_part
from stack.status import parts
from tests.support.services.waiting import until
from tests.support.sources.capturing import Captured, prepare

ROWS = 60_000
"""Enough for a snapshot of some seconds: it must still run when its first rows have been read."""
LARGE = 60_000
"""Rows of the transaction in whose middle Connect dies: many of the connector's batches."""
SCHEMA = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text);
INSERT INTO accounts SELECT i, 100, repeat('x', 100) FROM generate_series(1, 100) i;
CREATE TABLE transfers (id serial PRIMARY KEY, from_id int, to_id int, amount int);
"""
TABLES = ("public.accounts", "public.transfers")
OFFSETS = "_connect_offsets"
"""Connect's own notes of places."""


class Writer(threading.Thread):
    """Moves money between accounts, three rows of two tables in each transaction."""

    def __init__(self, dsn: str) -> None:
        super().__init__(name="writer")
        self.done = 0
        self._dsn = dsn
        self._end = threading.Event()

    def run(self) -> None:
        with psycopg.connect(self._dsn) as connection:
            while not self._end.is_set():
                self.done += 1
                one, other = self.done * 7 % 50 + 1, self.done * 11 % 50 + 51
                change = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
                connection.execute(change, (-1, one))
                connection.execute(change, (1, other))
                connection.execute(
                    "INSERT INTO transfers (from_id, to_id, amount) VALUES (%s, %s, 1)",
                    (one, other),
                )
                connection.commit()
                self._end.wait(0.002)

    def finish(self) -> int:
        self._end.set()
        self.join(30)
        return self.done


@pytest.fixture
def bank(stack: Settings, new_source: Callable[[str], str]) -> Iterator[Captured]:
    captured = prepare(stack, new_source(SCHEMA), TABLES, {})
    try:
        yield captured
    finally:
        captured.remove()


@pytest.fixture
def writer(bank: Captured) -> Iterator[Writer]:
    found = Writer(make_conninfo(bank.dsn))
    try:
        yield found
    finally:
        if found.is_alive():
            found.finish()


def rows_of(end: TransactionEnd) -> dict[str, int]:
    """Return the rows of each table in a transaction; one may hold messages about tables only."""
    return {table: count for table, count in end.counts.items() if table in TABLES}


def _process(stack: Settings) -> int | None:
    """Return the id of Connect's process once it is ready."""
    (part,) = (each for each in parts(stack.workspace) if each["name"] == "connect")
    return int(str(part["pid"])) if part["state"] == "ready" else None


def fresh(bank: Captured) -> list[Change]:
    """Drop what is at or below the mark of its partition; streamed changes only."""
    progress, found = Progress(), []
    for record, change in bank.changes:
        if change.snapshot:
            continue
        assert change.transaction_id is not None
        mark = Mark(change.commit_order, change.lsn, change.total_order, change.transaction_id)
        if progress.accept_change(f"{record.topic}/{record.partition}", mark) is not None:
            found.append(change)
    return found


@pytest.mark.matrix
def test_p4_a_kill_while_streaming_loses_and_doubles_nothing(
    stack: Settings, bank: Captured, writer: Writer
) -> None:
    bank.start()
    bank.await_snapshot()
    writer.start()
    killed: set[int | None] = {None}
    for kill in range(3):
        until(
            lambda: _process(stack) not in killed and _runs(bank), "it runs again", deadline_s=150
        )
        until(lambda kill=kill: writer.done >= 300 * (kill + 1), "work is done", deadline_s=60)
        killed.add(kill_part(stack.workspace, "connect"))
    until(lambda: writer.done >= 1_500, "work goes on", deadline_s=60)
    transfers = writer.finish()
    until(lambda: _process(stack) not in killed and _runs(bank), "it is back", deadline_s=150)
    bank.await_stream()

    changes = fresh(bank)
    inserted = [c for c in changes if c.table == "public.transfers"]
    assert len(inserted) == transfers
    assert len(changes) == 3 * transfers
    rows = {end.transaction_id: rows_of(end) for end in bank.transactions}
    ends = {transaction: counts for transaction, counts in rows.items() if counts}
    assert len(ends) == transfers
    each = {"public.accounts": 2, "public.transfers": 1}
    assert [counts for counts in ends.values() if counts != each] == []
    assert len({(c.transaction_id, c.lsn, c.total_order) for c in changes}) == len(changes)
    assert [bank.differing(table) for table in TABLES] == [[], []]
    assert bank.rejected == []


def sorted_out(source: str, records: list[dict[str, object]]) -> tuple[Arrival, Cut]:
    """Take decoded records in as one epoch does, after a snapshot that is complete."""
    progress = Progress()
    cut = progress.cut(source)
    cut.snapshot_done = True
    arrival = sort_out(
        pa.Table.from_pylist(records, schema=DECODED),
        progress,
        before=Progress(),
        epoch=Epoch(1),
        lateness=lambda _: timedelta(0),
        partitions={},
        now=datetime.now(UTC),
    )
    return arrival, cut


@pytest.mark.matrix
def test_p5_a_kill_amid_a_transaction_while_others_commit_loses_and_tears_nothing(
    stack: Settings, bank: Captured, writer: Writer
) -> None:
    bank.start()
    bank.await_snapshot()
    # The slot stays behind, as it does for a moment in every kill: what others committed while the
    # transaction was open is read again.
    config = bank.connect.config(bank.connector)
    assert config is not None
    bank.connect.apply(bank.connector, config | {"lsn.flush.mode": "manual"})
    until(lambda: _runs(bank), "it runs again", deadline_s=60)
    records: list[dict[str, object]] = []

    def large() -> list[dict[str, object]]:
        read = [(record, bank.decoder(record)) for record in bank.reader.poll()]
        records.extend(row_of(record, fact) for record, fact in read)
        return [row for row in records if row.get("transaction_id") == txid]

    def read(transfers: int) -> bool:
        large()
        return len({row["transaction_id"] for row in records if _moves(row)}) >= transfers

    insert = f"INSERT INTO transfers (amount) SELECT i FROM generate_series(1, {LARGE // 2}) i"
    with psycopg.connect(make_conninfo(bank.dsn)) as connection:
        found = connection.execute("SELECT txid_current()").fetchone()
        assert found is not None
        txid = str(found[0])
        connection.execute(insert.encode())
        writer.start()
        until(lambda: writer.done >= 100, "others commit", deadline_s=60)
        others = writer.finish()
        connection.execute(insert.encode())
        until(lambda: read(others), "what others did is here", deadline_s=120)
        before = committed(bank)
    until(lambda: committed(bank) > before, "its first rows are here", deadline_s=60)
    kill_part(stack.workspace, "connect")
    until(lambda: any(row["kind"] == "end" for row in large()), "its END is here", deadline_s=150)

    (end,) = [row for row in large() if row["kind"] == "end"]
    begins = sum(row["kind"] == "begin" for row in large())
    counted = json.loads(str(end["counts"]))["public.transfers"]
    sent = sum(row["kind"] == "change" for row in large())
    assert (begins, sent > LARGE) == (2, True), "it was not killed amid the transaction"
    assert counted == LARGE, "it counts a part only"

    arrival, cut = sorted_out(bank.source.name, records)
    logged = arrival.changes[bank.source.name]
    logged = logged.filter(pc.equal(logged["table"], "public.transfers"))
    own = logged.filter(pc.equal(logged["transaction_id"], txid))
    assert (own.num_rows, logged.num_rows) == (LARGE, LARGE + others)
    assert len(set(places_of(own))) == LARGE
    ends = {"any": {"0": 1}}
    cut.settle(ends, lambda: ends)
    assert txid not in cut.advance().transactions, "what was asked now counts from the next epoch"
    cut.settle({}, lambda: ends)
    assert txid not in cut.advance().transactions
    cut.settle(ends, lambda: ends)
    assert txid in cut.advance().transactions
    assert cut.waiting_for() is None


def test_p4_that_a_snapshot_begins_is_noted_as_no_place(bank: Captured) -> None:
    """A worker that finds a place without an LSN takes the snapshot for done, which has no row.

    Usually the begin is noted by itself, as no place; on a quick machine it comes with the first
    rows in one transaction of Connect, which notes the last place alone.
    """
    bank.start()
    bank.await_snapshot()
    bank.await_stream()
    places = noted(bank)
    assert [place for place in places if place is not None and "lsn" not in place] == []
    assert places
    assert places[-1] is not None


@pytest.mark.matrix
def test_p4_a_kill_during_the_snapshot_begins_it_anew(
    stack: Settings, bank: Captured, writer: Writer
) -> None:
    rows = f"SELECT i, 100, repeat('x', 100) FROM generate_series(101, {ROWS}) i"
    bank.execute(f"INSERT INTO accounts {rows}")
    writer.start()
    bank.start()

    until(bank.reader.any_records, "the first rows are here", deadline_s=60)
    kill_part(stack.workspace, "connect")
    assert not _ended(bank), "the snapshot was too quick to kill"
    until(lambda: writer.done >= 300, "work goes on", deadline_s=60)
    until(lambda: _ended(bank), "the snapshot ends", deadline_s=120)
    writer.finish()
    bank.await_stream()

    reads = [c for _, c in bank.changes if c.operation is Operation.READ]
    # Of the first one nothing can be read where it died before it committed a row.
    attempts = sorted({c.commit_order for c in reads})
    assert all(one < other for one, other in pairwise(attempts))
    last = [c for c in reads if c.commit_order == attempts[-1] and c.table == "public.accounts"]
    assert len(last) == ROWS
    bank.changes = [
        (record, change)
        for record, change in bank.changes
        if not change.snapshot or change.commit_order == attempts[-1]
    ]
    assert [bank.differing(table) for table in TABLES] == [[], []]


def _moves(row: dict[str, object]) -> bool:
    """Say whether a record is a transfer: one in each transaction, twice where a task restarted."""
    return row.get("table") == "public.transfers"


def _runs(bank: Captured) -> bool:
    try:
        return bank.connect.status(bank.connector).running
    except (NotFound, Unavailable):
        return False  # It answers before it has read its statuses.


def committed(bank: Captured) -> int:
    """Return how many records of transfers can be read: not those of open Kafka transactions."""
    topic = f"{bank.source.name}.public.transfers"
    admin = AdminClient({"bootstrap.servers": bank.settings.required("kafka.bootstrap")})
    parts = admin.list_topics(timeout=10).topics[topic].partitions
    ends = admin.list_offsets(
        {TopicPartition(topic, part): OffsetSpec.latest() for part in parts},
        isolation_level=IsolationLevel.READ_COMMITTED,
    )
    return sum(end.result(timeout=10).offset for end in ends.values())


def noted(bank: Captured) -> list[dict[str, object] | None]:
    """Return the places that Connect noted of the connector, oldest first; None: noted as none."""
    consumer = Consumer(
        {
            "bootstrap.servers": bank.settings.required("kafka.bootstrap"),
            "group.id": f"noted-{bank.source.name}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    parts = consumer.list_topics(OFFSETS, timeout=10).topics[OFFSETS].partitions
    consumer.assign([TopicPartition(OFFSETS, part, OFFSET_BEGINNING) for part in parts])
    found: list[dict[str, object] | None] = []
    left = set(parts)
    while left:
        message = consumer.poll(10)
        assert message is not None, "Connect's notes do not end"
        if message.error() is not None:
            left.discard(message.partition())
        elif json.loads(message.key())[0] == bank.connector:
            found.append(None if message.value() is None else json.loads(message.value()))
    consumer.close()
    return found


def _ended(bank: Captured) -> bool:
    bank.read()
    return None in {end.table for end in bank.snapshots}
