"""A source of two tables, made by hand, some of whose records cannot be read.

Rows of one transaction are spread over both tables; what becomes of each table is told by an oracle
that folds the transactions without the records that were waived.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pyarrow as pa
import pytest

from kernel.positions import Offsets
from lake.layout import Lake
from lake.table_columns import DECODED
from lake.tables import Tables
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.commit.quarantine import open_records
from pipeline.decode.records import Router, row_of
from pipeline.history.tables import HistoryTables
from pipeline.installs.install_book import InstallBook, InstallEntry
from pipeline.log import log_task
from pipeline.log.log_task import TOLD, Facts, LogTask
from pipeline.log.staged_rows import Staged
from pipeline.typed.tables import TypedTables
from projections.run.derived_tables import Brought, DerivedTables
from projections.serve.quarantined_records import places_of
from schemas.records import KafkaRecord, Rejected
from tests.support.lake.folding import AT, Done, State, apply, changes, registry, state_of

ITEMS, GOODS = "public.items", "public.goods"
ENDS, MESSAGES = "shop.transaction", "shop.message"
PARTS = {ENDS: "_transactions", MESSAGES: "_messages"}
POISON = b"\x00\x00\x00\xff\xff?"

Row = dict[str, Any]


def topic_of(table: str) -> str:
    """Return the topic of a table of the source."""
    return f"shop.{table}"


@dataclass
class PoisonedShop:
    """Commits transactions, delivers their records in epochs, and takes decisions about them."""

    lake: Lake
    records: dict[str, list[Row]] = field(default_factory=dict)
    poison: set[tuple[str, int]] = field(default_factory=set)
    mended: bool = False
    done: dict[str, list[tuple[int, Done]]] = field(default_factory=lambda: {ITEMS: [], GOODS: []})
    lsn: int = 100

    def __post_init__(self) -> None:
        self.registry = registry()
        self.delivered: dict[str, int] = {}
        begun = {"kind": "snapshot", "counts": '{"rows": 0}', "lsn": 0}
        self._add("shop.notifications", begun)
        self.restart()

    def ingesting(self, **more: Any) -> Ingest:
        """Return an ingest over the lake as it is; `more`: what it is given beside the least."""
        return Ingest(
            self.lake,
            self.tables,
            self.manifest,
            self.registry,
            lateness=lambda _: timedelta(0),
            broker=self,
            redecode=self.redecode,
            **more,
        )

    def restart(self) -> None:
        """Begin as a new process would."""
        self.tables = Tables()
        self.manifest = Manifest(self.lake, self.tables)
        self.book = InstallBook(self.lake, self.tables)
        self.ingest = self.ingesting()
        self.derived = DerivedTables(
            self.lake,
            self.tables,
            self.manifest,
            TypedTables(self.lake, self.tables, self.registry),
            # There are no histories.
            cast("HistoryTables", None),
        )

    def publish(self, offsets: Offsets) -> None:
        """Take note of nothing."""

    def ends(self, source: str) -> Offsets:
        """Return where the topics end."""
        return {topic: {"0": len(rows)} for topic, rows in self.records.items()}

    def commit(
        self, rows: dict[str, Sequence[Done]], *, spoil: Collection[tuple[str, int]] = ()
    ) -> None:
        """Commit one transaction; `spoil` names rows (table, index) and ENDs that are poison."""
        end = self.lsn + 10 * (sum(map(len, rows.values())) + 1)
        number = 0
        for table, done in rows.items():
            for index, row in enumerate(changes(done, first=1).to_pylist()):
                number += 1
                place = {
                    "kind": "change",
                    "table": table,
                    "transaction_id": str(end),
                    "lsn": self.lsn + 10 * number,
                    "commit_order": self.lsn,
                    "total_order": number,
                }
                known = {name: row[name] for name in DECODED.names if name in row}
                at = self._add(topic_of(table), known, place)
                self.done[table].append((at, done[index]))
                if (table, index) in spoil:
                    self.poison.add((topic_of(table), at))
        counts = {table: len(done) for table, done in rows.items() if done}
        told = {"kind": "end", "transaction_id": str(end), "lsn": end, "counts": json.dumps(counts)}
        at = self._add(ENDS, told)
        if (ENDS, 0) in spoil:
            self.poison.add((ENDS, at))
        self.lsn = end

    def plant(self, topic: str) -> None:
        """Let somebody else put a record into a topic that never was one of ours."""
        self.poison.add((topic, self._add(topic, {"kind": "ignored"})))

    def epoch(self, *, without: Collection[str] = (), on_executors: bool = False) -> Committed:
        """Make an epoch of what came since the last one; topics `without` are not read yet."""
        start, rows = dict(self.delivered), []
        for topic, each in self.records.items():
            if topic not in without:
                rows += [self._decoded(row) for row in each[start.get(topic, 0) :]]
                self.delivered[topic] = len(each)
        bound = Bound(
            epoch=self.ingest.next_epoch,
            run_id="t",
            batch_id=0,
            start={topic: {"0": start.get(topic, 0)} for topic in self.delivered},
            end={topic: {"0": at} for topic, at in self.delivered.items()},
        )
        decoded = pa.Table.from_pylist(rows, schema=DECODED)
        try:
            if on_executors:
                return self.ingest.run_epoch(bound, None, stage=partial(staged, decoded))
            return self.ingest.run_epoch(bound, lambda: decoded)
        except BaseException:
            self.delivered = start
            raise

    def finish(self, *, without: Collection[str] = ()) -> Committed:
        """Finish the epoch that a crash left, as the next process does; `without` topics."""
        self.restart()
        bound = self.manifest.unfinished()
        if bound is None:
            last = self.manifest.last()
            assert last is not None, "there is an epoch"
            self.delivered = {topic: places["0"] for topic, places in last.end.items()}
            return last
        rows = [
            self._decoded(row)
            for topic, places in bound.end.items()
            if topic not in without
            for row in self.records[topic][bound.start.get(topic, {}).get("0", 0) : places["0"]]
        ]
        decoded = pa.Table.from_pylist(rows, schema=DECODED)
        done = self.ingest.run_epoch(bound, lambda: decoded, without=without)
        self.delivered |= {topic: places["0"] for topic, places in done.end.items()}
        return done

    def decide(self, kind: str, topic: str, *, reason: str | None = None) -> int:
        """Decide about all records of a topic that wait; return the decision's number."""
        found = open_records(self.lake, Tables(), [], where=pa.compute.field("topic") == topic)
        assert found is not None, f"no record of {topic} waits"
        detail = {"places": places_of(found.to_pylist()), "by": "a test", "reason": reason}
        return self.book.put([InstallEntry(kind=kind, id=topic, source="shop", detail=detail)])[0]

    def waiting(self) -> set[tuple[str, int]]:
        """Return the topics and offsets of the records that wait."""
        found = open_records(self.lake, Tables(), [])
        pairs = found.select(["topic", "offset"]).to_pylist() if found is not None else []
        return {(row["topic"], row["offset"]) for row in pairs}

    def held(self) -> set[str]:
        """Return the tables that stand still."""
        return set(self.ingest.held().get("shop", {}))

    def state(self, table: str, at: Committed) -> State:
        """Return a table's rows as of an epoch."""
        known = at.tables.get(f"current/shop.{table}")
        path = self.lake.path(f"current/shop.{table}")
        return state_of(None if known is None else Tables().read(path, version=known.version))

    def expected(self, table: str, *, without: Iterable[int] = ()) -> State:
        """Return a table's rows when all but the changes at these offsets were folded."""
        gone = set(without)
        return apply({}, [done for at, done in self.done[table] if at not in gone])

    def bring(self) -> Brought:
        """Bring typed tables up to the last epoch."""
        last = self.manifest.last()
        assert last is not None, "there is an epoch"
        return self.derived.bring(self.derived.at(), last, [])

    def typed(self, table: str) -> list[int]:
        """Return the LSNs of a table's facts, in their order."""
        rows = Tables().read(self.lake.path(f"typed/shop.{table}"), columns=["_lsn"])
        return [] if rows is None else sorted(rows["_lsn"].to_pylist())

    def redecode(self, records: Sequence[KafkaRecord]) -> pa.Table:
        """Decode records again: as what they are once all is mended."""
        rows = []
        for record in records:
            own = self.records[record.topic][record.offset]
            if own["kind"] == "ignored" or not self.mended:
                rejected = Rejected(record=record, stage="decode", reason="still not Avro")
                rows.append(row_of(record, rejected))
            else:
                rows.append(own)
        return pa.Table.from_pylist(rows, schema=DECODED)

    def _add(self, topic: str, *parts: Row) -> int:
        rows = self.records.setdefault(topic, [])
        place = {"topic": topic, "partition": 0, "offset": len(rows), "source": "shop"}
        row: Row = {"recorded_at": AT, "event_time": AT}
        for part in (*parts, place):
            row |= part
        rows.append(row)
        return len(rows) - 1

    def _decoded(self, row: Row) -> Row:
        if (row["topic"], row["offset"]) not in self.poison:
            return row
        place = {name: row[name] for name in ("topic", "partition", "offset", "source")}
        table = PARTS.get(row["topic"], row["topic"].partition(".")[2])
        told = {"stage": "decode", "reason": "not Avro", "metadata": "{}", "value": POISON}
        return {**place, **told, "kind": "rejected", "table": table, "kafka_time": AT}


def staged(decoded: pa.Table, facts: Facts) -> Staged:
    """Write decoded rows as a task of executors does."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_task, "decode_batch", lambda *_: decoded.to_batches())
        task = LogTask(cast("Router", None), facts)
        return Staged.of(facts, pa.Table.from_batches(task(iter(decoded[:1].to_batches())), TOLD))
