"""What becomes of records in quarantine: decoded again, waived, or replaced by a copy.

A person's decision is an entry of the book (`pipeline.installs.install_book`) and is bound to an
epoch by its number, like an install. That epoch decodes the records again, or lets the transactions
that lack them be complete, and notes one outcome for each record. A record is open until its
outcome says otherwise; one that still cannot be read stays open, with the newer reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernel import failpoints
from kernel.clock import micros
from kernel.errors import InstallDeclined
from kernel.positions import Epoch, KafkaOffset
from lake.layout import Lake, changes_log, events_log
from lake.outcomes import COPIED, REFUSED, RELEASED, WAIVED
from lake.table_columns import (
    CHANGE,
    DECODED,
    EVENT,
    MESSAGE,
    OUTCOMES,
    RECORD,
    REJECTED,
    TRANSACTIONS_TABLE,
)
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.arrive.seen_events import CONTENT, among
from pipeline.arrive.sorter import Released
from pipeline.arrive.widened_topics import IDENTITY, repeated
from pipeline.installs.install_book import DECODE, Install, InstallEntry
from pipeline.position.progress import Progress
from schemas.header_text import headers_of
from schemas.records import KafkaRecord

PLACE = ["topic", "partition", "offset"]

Redecode = Callable[[Sequence[KafkaRecord]], pa.Table]
"""Decodes records with the schemas that there are now; returns `DECODED` rows in their order."""


def open_records(
    lake: Lake,
    tables: Tables,
    columns: Sequence[str],
    *,
    where: pc.Expression | None = None,
    before: int = 2**62,
) -> pa.Table | None:
    """Return the records that wait in quarantine, as of the epochs `before` one; None for none.

    Their order is that of their places.
    """
    asked = pc.field("epoch") < before
    wanted = list(dict.fromkeys([*PLACE, "epoch", "source", "table", "ingested_at", *columns]))
    present = tables.open(lake.quarantine)
    if present is None:
        return None
    # Tables of before sources and tables were noted lack these columns until the next record.
    names = {each.name for each in present.schema().fields}
    known = tables.read(
        lake.quarantine,
        where=asked if where is None else asked & where,
        columns=[name for name in wanted if name in names],
    )
    if known is None or not known.num_rows:
        return None
    for name in [name for name in wanted if name not in names]:
        known = known.append_column(name, pa.nulls(known.num_rows, pa.string()))
    ended = tables.read(lake.outcomes, where=asked)
    if ended is not None:
        known = _without(known, ended)
    return known.sort_by([(name, "ascending") for name in PLACE]) if known.num_rows else None


def _without(records: pa.Table, outcomes: pa.Table) -> pa.Table:
    over = outcomes.filter(pc.is_in(outcomes["outcome"], pa.array([RELEASED, WAIVED])))
    ended = over.group_by(PLACE).aggregate([("epoch", "max")])
    records = records.join(ended, PLACE, join_type="left outer")
    # In a topic that was made again another record came to the place of one that was decided about.
    later = pc.greater_equal(records["epoch"], pc.fill_null(records["epoch_max"], -1))
    records = records.filter(later).drop_columns(["epoch_max"])
    for copy in outcomes.filter(pc.equal(outcomes["outcome"], COPIED)).to_pylist():
        of_table = (pc.field("source") == copy["source"]) & (pc.field("table") == copy["table"])
        older = pc.field("ingested_at") < pa.scalar(copy["decided_at"])
        records = records.filter(~pc.coalesce(of_table & older, False))
    return records


@dataclass(slots=True)
class Quarantine:
    """Carries out decisions for ingest, one epoch at a time."""

    lake: Lake
    tables: Tables
    redecode: Redecode
    _outcomes: list[dict[str, Any]] = field(default_factory=list)
    _epoch: int = 0

    def take(
        self, decisions: Sequence[InstallEntry], progress: Progress, epoch: Epoch
    ) -> Released | None:
        """Carry out decisions; return the rows that are to enter the log.

        Depends on the decisions and on what epochs before this one left, so that an epoch that is
        done again does the same. Raises `Unavailable` when the registry does not answer.
        """
        self._outcomes, self._epoch = [], epoch
        handled: set[tuple[object, ...]] = set()
        rows: list[pa.Table] = []
        for entry in decisions:
            progress.installs.add(entry.number)
            records = self._records(entry, handled)
            if entry.kind == DECODE:
                rows += self._decode(entry, records, progress)
            else:
                for record in records:
                    self._end(entry, record, WAIVED, entry.detail.get("reason"), progress)
                    if record["source"] and record["table"]:
                        progress.cut(record["source"]).shortfalls.waive(record["table"])
        if not rows:
            return None
        released = pa.concat_tables(rows)
        return Released(rows=released, passed=self._passed(released, progress))

    def refuse_older(self, install: Install, progress: Progress) -> None:
        """Raise `InstallDeclined` for a copy that was read before a record of its table came.

        The row that the record stands for is in no table, and changes behind it would be folded
        without it.
        """
        waits = progress.waits(install.source, install.table)
        if waits is not None and waits.at >= micros(install.read_at):
            raise InstallDeclined(
                f"records of {install.table} came to quarantine after it was read: "
                f"penstock quarantine retry {install.source}.{install.table}"
            )

    def copied(self, install: Install, progress: Progress) -> None:
        """End the records of a table that was copied since they came."""
        waits = progress.waits(install.source, install.table)
        if waits is None:
            return
        for topic in [t for t, each in progress.quarantine.items() if each is waits]:
            del progress.quarantine[topic]
        progress.cut(install.source).shortfalls.forget(install.table)
        self._outcomes.append(
            {
                "decision": install.number,
                "source": waits.source,
                "table": waits.table,
                "outcome": COPIED,
                "reason": f"the table was copied ({install.id})",
                "decided_at": install.read_at,
            }
        )

    def note(self) -> None:
        """Write the outcomes of the epoch."""
        if not self._outcomes:
            return
        rows = [{"epoch": self._epoch, **row} for row in self._outcomes]
        table = pa.Table.from_pylist(rows, schema=OUTCOMES)
        guard = Guard("quarantine/outcomes", Epoch(self._epoch))
        ArrowWriter(self.tables).append(self.lake.outcomes, table, guard)
        failpoints.hit(failpoints.QUARANTINE_AFTER_OUTCOMES)

    def _records(
        self, entry: InstallEntry, handled: set[tuple[object, ...]]
    ) -> list[dict[str, Any]]:
        wanted = {(int(p), at) for p, offsets in entry.detail["places"].items() for at in offsets}
        at = pc.is_in(pc.field("offset"), pa.array(sorted({at for _, at in wanted}), pa.int64()))
        columns = ["key", "value", "headers", "kafka_time"]
        where = (pc.field("topic") == entry.id) & at
        found = open_records(self.lake, self.tables, columns, where=where, before=self._epoch)
        records = [] if found is None else found.to_pylist()
        own = [
            record
            for record in records
            if (record["partition"], record["offset"]) in wanted and _place(record) not in handled
        ]
        handled.update(map(_place, own))
        return own

    def _decode(
        self, entry: InstallEntry, records: list[dict[str, Any]], progress: Progress
    ) -> Iterator[pa.Table]:
        if not records:
            return
        decoded = self.redecode([_kafka_record(record) for record in records])
        again, taken = self._in_log(decoded)
        kept: list[int] = []
        for index, (record, kind) in enumerate(
            zip(records, decoded["kind"].to_pylist(), strict=True)
        ):
            if kind == REJECTED or index in taken:
                reason = taken.get(index) or decoded["reason"][index].as_py()
                self._outcome(entry, record, REFUSED, reason)
                continue
            self._end(entry, record, RELEASED, None, progress)
            if index in again or kind not in _FACTS:
                if record["source"] and record["table"]:
                    progress.cut(record["source"]).shortfalls.read_again(record["table"])
            else:
                kept.append(index)
        if kept:
            yield decoded.take(kept)

    def _in_log(self, decoded: pa.Table) -> tuple[set[int], dict[int, str]]:
        """Return the indices of rows that earlier epochs logged, or that come twice here.

        With them, by index, why an event cannot enter: its position has another one.
        """
        numbered = decoded.append_column("row", pa.array(range(decoded.num_rows), pa.int64()))
        found: set[int] = set()
        taken: dict[int, str] = {}
        before = pc.field("epoch") < self._epoch
        for source in pc.unique(decoded["source"].drop_null()).to_pylist():
            own = numbered.filter(pc.field("source") == source)
            changes = own.filter(pc.is_in(own["kind"], pa.array([CHANGE, MESSAGE])))
            if changes.num_rows:
                ids = pc.unique(changes["transaction_id"])
                where = before & pc.is_in(pc.field("transaction_id"), ids)
                path = self.lake.path(changes_log(source))
                known = self.tables.read(path, where=where, columns=IDENTITY)
                found |= set(repeated(changes, known))
            events = own.filter(pc.equal(own["kind"], EVENT))
            if events.num_rows:
                where = before & pc.is_in(pc.field("position"), pc.unique(events["position"]))
                path = self.lake.path(events_log(source))
                logged = self.tables.read(path, where=where, columns=list(CONTENT))
                again, others = among(source, events, logged)
                found |= {events["row"][place].as_py() for place in again}
                taken |= {events["row"][place].as_py(): why for place, why in others.items()}
        return found, taken

    def _passed(self, rows: pa.Table, progress: Progress) -> set[str]:
        """Return the transactions of these rows that the cut of their source has passed."""
        found: set[str] = set()
        changes = rows.filter(pc.is_in(rows["kind"], pa.array([CHANGE, MESSAGE])))
        for source in pc.unique(changes["source"]).to_pylist():
            own = changes.filter(pc.field("source") == source)
            ids = pc.unique(own["transaction_id"].drop_null())
            ends = self.tables.read(
                self.lake.path(changes_log(source)),
                where=(pc.field("table") == TRANSACTIONS_TABLE)
                & (pc.field("epoch") < self._epoch)
                & (pc.field("lsn") <= progress.cut(source).reached)
                # A transaction's number comes again after some milliards of others.
                & (pc.field("lsn") >= pc.min(own["lsn"]))
                & pc.is_in(pc.field("transaction_id"), ids),
                columns=["transaction_id"],
            )
            found |= set() if ends is None else set(ends["transaction_id"].to_pylist())
        return found

    def _end(
        self,
        entry: InstallEntry,
        record: dict[str, Any],
        outcome: str,
        why: str | None,
        progress: Progress,
    ) -> None:
        progress.decided(record["topic"])
        self._outcome(entry, record, outcome, why)

    def _outcome(
        self, entry: InstallEntry, record: dict[str, Any], outcome: str, reason: str | None
    ) -> None:
        place = {name: record[name] for name in (*PLACE, "source", "table")}
        self._outcomes.append(
            {
                **place,
                "decision": entry.number,
                "outcome": outcome,
                "reason": reason,
                "by": entry.detail.get("by"),
                "decided_at": entry.at or datetime.now(UTC),
            }
        )


_FACTS: Collection[str] = (CHANGE, MESSAGE, EVENT, RECORD, "end", "snapshot")


def _place(record: dict[str, Any]) -> tuple[object, ...]:
    return tuple(record[name] for name in PLACE)


def _kafka_record(record: dict[str, Any]) -> KafkaRecord:
    headers, told = KafkaRecord.with_headers(headers_of(record["headers"]))
    return KafkaRecord(
        topic=record["topic"],
        partition=record["partition"],
        offset=KafkaOffset(record["offset"]),
        timestamp=record["kafka_time"] or record["ingested_at"],
        key=record["key"],
        value=record["value"],
        headers=headers,
        told=told,
    )


def nothing_decoded(records: Sequence[KafkaRecord]) -> pa.Table:
    """Decode nothing: for an ingest that nobody gives decisions to."""
    assert not records, "there is nobody who decodes records again"
    return DECODED.empty_table()
