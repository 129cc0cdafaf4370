"""A connector that dies amid transactions loses nothing, however it goes on.

The model sends what connectors send that start again amid a transaction: the whole transaction once
more, as ours does, or the rest of it with numbers from 1, as Debezium's own may do when others
committed while it was open: their BEGIN and COMMIT, read again, reset its counters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lake.table_columns import DECODED
from pipeline.arrive.arrival import sort_out
from pipeline.order import places_of
from pipeline.position.progress import Progress

NOW = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, object]
BOUNDARIES = ("shop.transaction", 0)
TABLES = ("public.orders", "public.lines")


@dataclass
class Topics:
    """Records of one source in the order in which they were sent, by topic partition."""

    sent: dict[tuple[str, int], list[Row]] = field(default_factory=dict)
    told: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    """By record: how many the topic of BEGINs and ENDs held when it was sent."""

    def send(self, topic: str, partition: int, row: Row) -> None:
        records = self.sent.setdefault((topic, partition), [])
        place = {"topic": topic, "partition": partition, "offset": len(records), "source": "shop"}
        records.append(row | place | {"event_time": NOW, "recorded_at": NOW})
        before = self.told.setdefault((topic, partition), [])
        before.append(len(self.sent.get(BOUNDARIES, ())))

    def boundary(self, kind: str, transaction: str, **row: object) -> None:
        self.send(*BOUNDARIES, {"kind": kind, "transaction_id": transaction, **row})

    def change(self, transaction: str, before: int, lsn: int, total: int, key: int) -> None:
        table = TABLES[key % 2]
        row = {
            "kind": "change",
            "table": table,
            "operation": "u",
            "transaction_id": transaction,
            "lsn": lsn,
            "commit_order": before,
            "total_order": total,
            "snapshot": False,
            "schema_id": 1,
            "key_schema_id": 2,
            "key": str(key).encode(),
        }
        self.send(f"shop.{table}", key // 2 % 2, row)

    def ends(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for (topic, partition), records in self.sent.items():
            found.setdefault(topic, {})[str(partition)] = len(records)
        return found


def connector(
    lengths: list[tuple[int, list[int], bool]],
) -> tuple[Topics, list[tuple[int, bytes]]]:
    """Send transactions of so many rows, each with restarts of one kind after some of them.

    While one is open another commits, whose COMMIT comes late enough to be read again. Returns the
    topics and (LSN, key) of all rows in the source's order.
    """
    topics, expected, at = Topics(), [], 100
    for number, (rows, stops, whole) in enumerate(lengths):
        open_, other = f"{2 * number + 1}", f"{2 * number + 2}"
        # Up to eight rows share an LSN, as those of one COPY record do.
        lsns = [at + 2 * (place - place % (rows % 8 + 1)) for place in range(rows)]
        key = [(7 * number + place) % 8 for place in range(rows)]
        beside, before = at + 1, at + 3 * rows + 50
        message = before + 5
        topics.boundary("begin", other)
        topics.change(other, at - 1, beside, 1, 3)
        expected.append((beside, b"3"))
        counts = json.dumps({TABLES[1]: 1})
        topics.boundary("end", other, lsn=before, counts=counts)
        topics.boundary("begin", open_)
        known, total, seen = message, 0, dict.fromkeys(TABLES, 0)
        for stop in sorted(stop for stop in stops if whole and stop < rows):
            for place in range(stop):
                topics.change(open_, message, lsns[place], place + 1, key[place])
            topics.boundary("begin", open_)
        for place in range(rows):
            if not whole and place in stops and lsns[place] != lsns[place - 1]:
                topics.boundary("begin", other)
                topics.boundary("end", other, lsn=before, counts="{}")
                topics.boundary("begin", open_)
                known, total, seen = before, 0, dict.fromkeys(TABLES, 0)
            total += 1
            seen[TABLES[key[place] % 2]] += 1
            topics.change(open_, known, lsns[place], total, key[place])
            expected.append((lsns[place], str(key[place]).encode()))
        at = message + 10
        topics.boundary("end", open_, lsn=at, counts=json.dumps(seen))
    return topics, expected


STOPS = st.lists(st.integers(1, 30), max_size=3)
LENGTHS = st.lists(st.tuples(st.integers(1, 30), STOPS, st.booleans()), min_size=1, max_size=3)


def batches(topics: Topics, draw: st.DataObject) -> Iterator[tuple[list[Row], dict[str, object]]]:
    """Read the topics in some batches, each as far as it may be, and the end of all at last.

    A BEGIN is read no later than the rows after it: it was committed to Kafka with or before them.
    """
    read = dict.fromkeys(topics.sent, 0)
    for last in [False] * draw.draw(st.integers(0, 5)) + [True]:
        ends = {
            place: len(records) if last else draw.draw(st.integers(read[place], len(records)))
            for place, records in topics.sent.items()
        }
        told = [topics.told[place][end - 1] for place, end in ends.items() if end]
        ends[BOUNDARIES] = max(ends[BOUNDARIES], *told, 0)
        rows: list[Row] = []
        for place, records in topics.sent.items():
            rows += records[read[place] : ends[place]]
        read = ends
        offsets: dict[str, dict[str, int]] = {}
        for (topic, partition), end in read.items():
            offsets.setdefault(topic, {})[str(partition)] = end
        yield rows, offsets


@given(LENGTHS, st.data())
def test_p5_restarts_amid_transactions_lose_double_and_tear_nothing(
    lengths: list[tuple[int, list[int], bool]], data: st.DataObject
) -> None:
    topics, expected = connector(lengths)
    progress, logged = Progress(), []
    progress.cut("shop").snapshot_done = True
    complete: set[str] = set()
    for epoch, (rows, read) in enumerate(batches(topics, data), start=1):
        after = progress.copy()
        arrival = sort_out(
            pa.Table.from_pylist(rows, schema=DECODED),
            after,
            before=progress,
            epoch=epoch,
            lateness=lambda _: timedelta(0),
            partitions={},
            now=NOW,
        )
        cut = after.cut("shop")
        cut.settle(read, topics.ends)
        complete |= set(cut.advance().transactions)
        fresh = arrival.changes.get("shop")
        if fresh is not None:
            changes = fresh.filter(pa.compute.equal(fresh["operation"], "u"))
            logged += zip(places_of(changes), changes.to_pylist(), strict=True)
        have = [row["transaction_id"] for _, row in logged]
        for transaction in complete:
            sent = len(
                {
                    (record["lsn"], record["key"])
                    for records in topics.sent.values()
                    for record in records
                    if record["transaction_id"] == transaction and record["kind"] == "change"
                }
            )
            assert have.count(transaction) == sent, "complete before all its rows were there"
        progress = Progress.from_json(after.to_json())
    cut = progress.cut("shop")
    # What was asked in the last epoch is compared in the one after it.
    cut.settle(read, topics.ends)
    complete |= set(cut.advance().transactions)
    assert sorted((row["lsn"], row["key"]) for _, row in logged) == sorted(expected)
    assert len(complete) == 2 * len(lengths)
    assert cut.waiting_for() is None
    for key in {row["key"] for _, row in logged}:
        own = [(place, row["lsn"]) for place, row in logged if row["key"] == key]
        wanted = [lsn for lsn, known in expected if known == key]
        assert [lsn for _, lsn in sorted(own)] == wanted, "a row's changes keep their order"
