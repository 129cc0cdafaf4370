"""Decides of each row of a batch whether it is new and whether it is late.

It looks at the columns that decide (`DECIDING`) and at what epoch E-1 remembered, so that it serves
rows in this process as well as rows that executors hold.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kernel.clock import micros
from kernel.positions import LARGEST
from lake.table_columns import (
    CHANGE,
    EVENT,
    IGNORED,
    MESSAGE,
    RECORD,
    REJECTED,
    SCHEMA_TABLE,
    SNAPSHOT_END,
    SNAPSHOTS_TABLE,
    TRANSACTION_END,
    TRANSACTIONS_TABLE,
)
from pipeline.arrive.runs import ArrivalRun, EventRun, others, runs_of
from pipeline.decode.log_rows import Kept, sizes_of
from pipeline.position.progress import Lateness, Mark, Progress
from schemas.records import MESSAGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Rows that were in quarantine and are decoded now (`DECODED`), none of which the log has.

    `passed` are the transactions among theirs that the cut has passed.
    """

    rows: pa.Table
    passed: Collection[str]


class _Row(NamedTuple):
    """The columns that decide; `event_time` in microseconds, `size` in bytes (`sizes_of`)."""

    kind: str
    topic: str
    partition: int
    source: str
    table: str
    position: int
    event_time: int
    transaction_id: str
    lsn: int
    commit_order: int
    total_order: int
    snapshot: bool
    counts: str
    size: int


class _Refusal(NamedTuple):
    """What is remembered of a rejected record; `store` and `position` are those of an event."""

    topic: str
    source: str | None
    table: str | None
    reason: str
    store: str | None
    position: int


_ABOUT_REJECTED = ["topic", "source", "table", "reason", "metadata"]


class Sorter:
    """Decides row by row; keeps places, not rows.

    A batch comes in slices: rows of a partition in their order, partitions in theirs. `events`,
    `changes`, `records` and `repeated` have places within the last slice. `doubled` are the
    positions of which this batch has several events, which the caller compares with one another.
    """

    def __init__(
        self,
        progress: Progress,
        before: Progress,
        epoch: int,
        lateness: Lateness,
        partitions: Mapping[str, int],
    ) -> None:
        self._progress = progress
        self._before = before
        self._epoch = epoch
        self._lateness = lateness
        self._partitions = partitions
        self.events: dict[str, Kept] = {}
        self.changes: dict[str, Kept] = {}
        self.records: dict[str, Kept] = {}
        self.repeated: dict[str, list[int]] = {}
        self.doubled: dict[str, set[int]] = {}
        self.schema_ids: set[int] = set()
        self.schema_changes: set[str] = set()
        self.counts: Counter[str] = Counter()
        self._rejected: list[_Refusal] = []

    def begin(self) -> None:
        """Forget the places that were kept of the slice before."""
        self.events, self.changes, self.records, self.repeated = {}, {}, {}, {}

    def take_slice(self, ordered: pa.Table) -> None:
        """Take the next rows, in their order, but for those that were rejected."""
        self.begin()
        runs = list(runs_of(ordered, self._progress))
        rest = others(ordered.num_rows, runs)
        singles = deque(zip(rest.tolist(), _rows(ordered.take(rest)), strict=True))
        for run in runs:
            # Of two rows of one position the first one counts, in whatever run it is.
            while singles and singles[0][0] < run.first:
                self.take(*singles.popleft())
            if isinstance(run, ArrivalRun):
                self.take_run(run)
            elif not self.take_events(run):
                rows = _rows(ordered.slice(run.first, run.last - run.first))
                singles.extendleft(reversed([*enumerate(rows, start=run.first)]))
        for index, row in singles:
            self.take(index, row)
        self.schema_ids |= _schema_ids(ordered)
        rejected = pc.equal(ordered["kind"], REJECTED)
        for row in ordered.select(_ABOUT_REJECTED).filter(rejected).to_pylist():
            place = row["topic"], row["source"], row["table"]
            told = json.loads(row["metadata"] or "{}")
            self._rejected.append(_Refusal(*place, row["reason"] or "", *_position(told)))

    def take_rejected(self, now: datetime) -> None:
        """Account for the rejected records, when all slices were taken.

        One that names its position is no hole, but an event of that position comes first.
        """
        for refusal in self._rejected:
            if refusal.store is not None:
                self._progress.refuse_position(refusal.store, refusal.position)
            place = refusal.topic, refusal.source, refusal.table
            self._progress.quarantined(*place, refusal.reason, at=micros(now))
        self.counts["quarantined"] = len(self._rejected)

    def take_all_released(self, released: Released, *, first: int) -> None:
        """Take the rows that were in quarantine; `first` is the place of the first one."""
        for index, row in enumerate(_rows(released.rows), start=first):
            self.take_released(index, row, passed=released.passed)
        self.counts["released"] = released.rows.num_rows
        self.schema_ids |= _schema_ids(released.rows)

    def total(self) -> Counter[str]:
        """Return the counts for people, without zeros."""
        return Counter({name: n for name, n in self.counts.items() if n})

    def take(self, index: int, row: _Row) -> None:
        """Take one row, by its place in the slice."""
        match row.kind:
            case "event":
                self._event(index, row)
            case "change":
                self._change(index, row)
            case "message":
                self._message(index, row)
            case "record":
                self._record(index, row)
            case "begin":
                self._progress.cut(row.source).begin(row.transaction_id)
                self.counts[IGNORED] += 1
            case "end":
                counts = json.loads(row.counts)
                if self._progress.cut(row.source).end(row.transaction_id, row.lsn, counts):
                    self.changes.setdefault(row.source, Kept()).add(index)
            case "snapshot":
                cut = self._progress.cut(row.source)
                cut.snapshot_end(row.table, json.loads(row.counts)["rows"])
                self.changes.setdefault(row.source, Kept()).add(index)
            case "ignored":
                self.counts[IGNORED] += 1

    def _event(self, index: int, row: _Row) -> None:
        self.counts["events_read"] += 1
        refused = self._progress.refused.get(row.source)
        self.counts["reclaimed"] += refused is not None and row.position in refused
        if self._progress.accept_position(row.source, row.position):
            self.counts["events"] += 1
            kept = self.events.setdefault(row.source, Kept())
            kept.add(index, *self._verdict(f"events.{row.table}", row))
            return
        self.counts["duplicates"] += 1
        if self._before.had_event(row.source, row.position):
            self.repeated.setdefault(row.source, []).append(index)
        else:
            self.doubled.setdefault(row.source, set()).add(row.position)

    def _record(self, index: int, row: _Row) -> None:
        """A record of an external topic is as new as its offset: the manifest has those read."""
        self.counts["records"] += 1
        kept = self.records.setdefault(row.source, Kept())
        kept.add(index, *self._verdict(f"topics.{row.source}", row))

    def _change(self, index: int, row: _Row) -> None:
        self.counts["changes_read"] += 1
        cut = self._progress.cut(row.source)
        order = None
        if row.snapshot:
            cut.snapshot_row(row.table, lsn=row.commit_order, epoch=self._epoch, size=row.size)
        else:
            mark = self._accepted(row)
            if mark is None:
                return
            order = _other_order(row, mark)
            self._count(row, row.table)
        self.counts["changes"] += 1
        kept = self.changes.setdefault(row.source, Kept())
        kept.add(index, *self._verdict(f"{row.source}.{row.table}", row), order=order)

    def _accepted(self, row: _Row) -> Mark | None:
        """Advance the mark of the row's partition; None for a row that came before."""
        mark = self._progress.accept_change(
            f"{row.topic}/{row.partition}",
            Mark(row.commit_order, row.lsn, row.total_order, row.transaction_id),
        )
        self.counts["duplicates"] += mark is None
        return mark

    def take_events(self, run: EventRun) -> bool:
        """Take many events if all are new, as `take` would one by one; else take none."""
        if not self._progress.accept_positions(run.source, run.positions):
            return False
        rows, name = run.last - run.first, f"events.{run.category}"
        late = self._note_times(run, name, self.events.setdefault(run.source, Kept()))
        self.counts.update({"events_read": rows, "events": rows, "closed_late": late})
        return True

    def _note_times(self, run: ArrivalRun | EventRun, name: str, kept: Kept) -> int:
        """Keep a run's rows with the verdict on their lateness; return how many are late."""
        marks = self._before.watermarks
        late = marks.late_ones(name, run.event_times, self._lateness(name))
        self.counts["ahead"] += self._progress.watermarks.note_all(
            name, run.place, run.event_times, partitions=self._partitions.get(run.topic, 1)
        )
        kept.rows += range(run.first, run.last)
        kept.watermarks += [marks.of(name)] * (run.last - run.first)
        kept.late += late.tolist()
        return int(late.sum())

    def take_run(self, run: ArrivalRun) -> None:
        """Take many changes that are all new, as `take` would one by one."""
        rows = run.last - run.first
        name = f"{run.source}.{run.table}"
        self._progress.marks[run.place] = run.mark
        cut = self._progress.cut(run.source)
        for transaction_id, (count, lsn, size) in run.transactions.items():
            cut.row(
                transaction_id,
                run.table,
                epoch=self._epoch,
                lsn=lsn,
                rows=count,
                order=run.orders[transaction_id],
                size=size,
            )
        late = self._note_times(run, name, self.changes.setdefault(run.source, Kept()))
        self.counts.update({"changes_read": rows, "changes": rows, "closed_late": late})

    def _message(self, index: int, row: _Row) -> None:
        """A logical message has its place among a transaction's rows, and is never late.

        The log keeps those that tell of DDL. Others are signals of ours and carry no fact: they
        are counted, so that their transaction is complete.
        """
        mark = self._accepted(row)
        if mark is None:
            return
        self._count(row, MESSAGES)
        self.counts["messages"] += 1
        if row.table == SCHEMA_TABLE:
            kept = self.changes.setdefault(row.source, Kept())
            kept.add(index, order=_other_order(row, mark))
            self.schema_changes.add(row.source)

    def _count(self, row: _Row, table: str) -> None:
        """Count a row towards its transaction."""
        self._progress.cut(row.source).row(
            row.transaction_id,
            table,
            epoch=self._epoch,
            lsn=row.lsn,
            order=row.commit_order,
            size=row.size,
        )

    def take_released(self, index: int, row: _Row, *, passed: Collection[str]) -> None:
        """Take a row that was in quarantine, whatever was read of its topic since."""
        if row.kind == EVENT:
            new = self._progress.accept_position(row.source, row.position)
            if not new and not self._before.had_event(row.source, row.position):
                self.doubled.setdefault(row.source, set()).add(row.position)
                return
            kept = self.events.setdefault(row.source, Kept())
            kept.add(index, *self._verdict(f"events.{row.table}", row))
            return
        if row.kind == RECORD:
            self._record(index, row)
            return
        cut, own = self._progress.cut(row.source), MESSAGES if row.kind == MESSAGE else row.table
        if row.kind == TRANSACTION_END:
            counts = json.loads(row.counts)
            kept_in_log = cut.late_end(row.transaction_id, row.lsn, counts)
            own = TRANSACTIONS_TABLE
        elif row.kind == SNAPSHOT_END:
            cut.snapshot_end(row.table, json.loads(row.counts)["rows"])
            kept_in_log, own = True, SNAPSHOTS_TABLE
        else:
            kept_in_log = row.kind == CHANGE or row.table == SCHEMA_TABLE
            if row.kind == MESSAGE and kept_in_log:
                self.schema_changes.add(row.source)
            if row.snapshot:
                cut.snapshot_row(row.table, lsn=row.commit_order, epoch=self._epoch, size=row.size)
            elif row.transaction_id not in passed:
                self._count(row, own)
        if row.transaction_id not in passed:
            cut.shortfalls.read_again(own)
        if kept_in_log:
            self.changes.setdefault(row.source, Kept()).add(index)

    def _verdict(self, name: str, row: _Row) -> tuple[int | None, bool]:
        """Judge lateness, once: it is stored, so that a rebuild agrees."""
        watermark = self._before.watermarks.of(name)
        late = not row.snapshot and self._before.watermarks.late(
            name, row.event_time, self._lateness(name)
        )
        self.counts["ahead"] += self._progress.watermarks.note(
            name,
            f"{row.topic}/{row.partition}",
            row.event_time,
            partitions=self._partitions.get(row.topic, 1),
        )
        self.counts["closed_late"] += late
        return watermark, late


def _other_order(row: _Row, mark: Mark) -> int | None:
    return None if mark.order == row.commit_order else mark.order


def _rows(ordered: pa.Table) -> Iterator[_Row]:
    made = {"event_time": ordered["event_time"].cast(pa.int64()), "size": sizes_of(ordered)}
    columns = [made[name] if name in made else ordered[name] for name in _Row._fields]
    return map(_Row._make, zip(*(column.to_pylist() for column in columns), strict=True))


def _schema_ids(ordered: pa.Table) -> set[int]:
    named = ordered.select(["schema_id", "key_schema_id"])
    facts = named.filter(pc.is_in(ordered["kind"], pa.array([EVENT, CHANGE, MESSAGE, RECORD])))
    ids = set(facts["schema_id"].unique().to_pylist())
    ids |= set(facts["key_schema_id"].unique().to_pylist())
    return ids - {None}


def _position(headers: Mapping[str, str]) -> tuple[str | None, int]:
    """Return store and position that a rejected record names; None where it names none.

    Numbers that no event has as its position are none: they would be taken for a gap in the log.
    """
    try:
        store = bytes.fromhex(headers["store_id"]).decode()
        position = int(bytes.fromhex(headers["position"]).decode())
    except (KeyError, TypeError, ValueError):
        return None, 0
    return (store, position) if 1 <= position <= LARGEST else (None, 0)
