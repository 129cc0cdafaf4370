"""The manifest `lake/epochs`: which input offsets became which table versions.

Three kinds of row. `bound`: epoch E will be made of exactly these offsets; written before anything
else. `committed`: epoch E is complete, with the versions that belong to it; only now do readers
who ask for consistency see it. `projection`: a projection has taken input up to E; such rows are a
convenience, rebuilt from the projection's own table.
An epoch is committed once, and never reused.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Conflict, LeaseLost, NotFound
from kernel.positions import CLOSED, LARGEST, Epoch, Offsets
from lake.guarded_commits import mark_of
from lake.layout import Lake
from lake.log_lengths import SHORT
from lake.table_columns import UTC_MICROS
from lake.tables import Tables, greatest
from lake.writer import ArrowWriter, Guard
from pipeline.commit.epoch_memory import EpochMemory
from pipeline.commit.manifest_rows import (
    BOUND,
    COMMITTED,
    PROJECTION,
    Bound,
    Committed,
    Projected,
    bound_of,
    bound_row,
    committed_of,
    compact,
    noted_at,
    projected_of,
    projected_row,
    tables_json,
)
from pipeline.position.progress import Progress

_APP = "epochs"
"""What its commits are guarded as, beside what each of them says."""

SCHEMA = pa.schema(
    [
        ("epoch", pa.int64()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("run_id", pa.string()),
        ("batch_id", pa.int64()),
        ("start_offsets", pa.string()),
        ("end_offsets", pa.string()),
        ("progress", pa.string()),
        ("heads", pa.string()),
        ("cuts", pa.string()),
        ("pending_from", pa.string()),
        ("tables", pa.string()),
        ("counts", pa.string()),
        ("timings_ms", pa.string()),
        ("at", UTC_MICROS),
        ("installs", pa.string()),
        ("held", pa.string()),
        ("topics", pa.string()),
        ("meaning", pa.string()),
        ("standing", pa.string()),
    ]
)
"""From `installs` on they came later: rows without took, held and know none."""


def rows_of(*rows: Mapping[str, object]) -> pa.Table:
    """Return rows of the manifest that are written now."""
    now = datetime.now(UTC)
    return pa.Table.from_pylist([{**row, "at": now} for row in rows], schema=SCHEMA)


class Manifest:
    """Reads and appends the manifest of one lake."""

    def __init__(self, lake: Lake, tables: Tables, *, memory: EpochMemory | None = None) -> None:
        """`memory` has what others in this process read of the lake, or commit to it."""
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._newest: tuple[int, Committed | None] = (-1, None)
        self.memory = memory or EpochMemory()
        self._own_notes: dict[str, Epoch] = {}
        self._made = False

    def bind(self, bound: Bound) -> None:
        """Bind an epoch to its offsets; binding it again to the same ones changes nothing.

        Raises `LeaseLost` when another run bound it to other offsets.
        """
        guard, row = Guard(f"{_APP}/bound", bound.epoch), rows_of(bound_row(bound))
        if not self._made:
            # Several commits of each epoch, by several threads, and nobody reads an old version.
            self._tables.ensure(self._lake.epochs, row.schema, settings=SHORT)
            self._made = True
        try:
            self._writer.claim(self._lake.epochs, row, guard)
        except LeaseLost:
            if self.unfinished() != bound:
                raise

    def leave_out(self, bound: Bound) -> None:
        """Bind an epoch that is bound already to fewer topics, before any of its rows is written.

        Who finishes it after a crash leaves the same out: tables of all topics take rows once.
        """
        row = rows_of(bound_row(bound))
        self._writer.append(self._lake.epochs, row, self._again("left out"))

    def commit(self, done: Committed) -> None:
        """Make an epoch visible. Doing it twice has the effect of once."""
        row = {
            "epoch": done.epoch,
            "kind": COMMITTED,
            "run_id": done.run_id,
            "batch_id": done.batch_id,
            "end_offsets": compact(done.end),
            "progress": done.progress,
            "heads": compact(done.heads),
            "cuts": compact(done.cuts),
            "pending_from": compact(done.pending_from),
            "tables": tables_json(done.tables),
            "counts": compact(done.counts),
            "timings_ms": compact(done.timings_ms),
            "installs": compact(done.installs),
            "topics": compact(done.topics),
        }
        guard, rows = Guard(f"{_APP}/committed", done.epoch), rows_of(row)
        _, new = self._writer.append_told(self._lake.epochs, rows, guard)
        if new:
            # As whoever reads it has it: the moment of its commit, say, is that of its row.
            self.memory.add(map(committed_of, rows.to_pylist()))
        self._tables.appended(self._lake.epochs)

    def project(self, done: Projected, *, again: bool = False) -> None:
        """Note how far a derived table has come; see `project_all`."""
        self.project_all([(done, again)])

    def project_all(self, notes: Sequence[tuple[Projected, bool]]) -> None:
        """Note how far derived tables have come, each once, in one commit.

        With each: whether it is noted anew for an epoch that it had noted. A note whose epoch is
        there already is left out. Raises `Conflict` for the cursor of a writer that was closed: as
        the greatest epoch of all it would hide every one that was committed. Raises `LeaseLost`
        where another writer noted one of them meanwhile; nothing is written then.
        """
        guarded = []
        for done, again in notes:
            if done.epoch >= CLOSED:
                raise Conflict(f"{done.name} was closed: it has no epoch that could be noted")
            app = f"{_APP}/{done.name}"
            guard = self._again(f"{done.name}/again") if again else Guard(app, done.epoch)
            guarded.append((rows_of(projected_row(done)), guard))
        before = {done.name: self.noted(done.name) for done, _ in notes}
        for name in before:  # Unknown until the write is known to have ended.
            self._own_notes.pop(name, None)
        self._writer.append_all(self._lake.epochs, guarded)
        for done, again in notes:
            known = before[done.name]
            if not again:
                self._own_notes[done.name] = max(done.epoch, known or done.epoch)
            elif known is not None:
                self._own_notes[done.name] = known
        self._tables.appended(self._lake.epochs)

    def noted(self, name: str) -> Epoch | None:
        """Return the newest epoch that a derived table has noted; for its own writer. Cheap.

        Of a table that this object has noted, that is what it noted last: nobody else does.
        """
        if name in self._own_notes:
            return self._own_notes[name]
        table = self._tables.open(self._lake.epochs)
        done = None if table is None else mark_of(table, f"{_APP}/{name}")
        return None if done is None else Epoch(done)

    def forget_notes(self, kept: Container[str]) -> None:
        """Ask the table again what was noted of all but some names: others may note them now."""
        self._own_notes = {n: at for n, at in self._own_notes.items() if n in kept}

    def forget_note(self, name: str) -> None:
        """Ask the table again what was noted of a name: another one may have noted it."""
        self._own_notes.pop(name, None)

    def version(self) -> int:
        """Return the manifest's table version; -1 before the first epoch. Cheap."""
        table = self._tables.open(self._lake.epochs)
        return -1 if table is None else int(table.version())

    def last(self) -> Committed | None:
        """Return the newest committed epoch; None before the first."""
        version = self.version()
        known, newest = self._newest
        if known != version:
            newest = self._read_last()
            self._newest = version, newest
        return newest

    def _read_last(self) -> Committed | None:
        table = self._tables.open(self._lake.epochs)
        mark = None if table is None else mark_of(table, f"{_APP}/committed")
        known = None if mark is None else self.memory.get(mark)
        if known is not None:
            return known
        top = greatest(table, "epoch") if table is not None else None
        if top is None:
            return None
        # Epoch `top` may be bound only; then `top - 1` is the newest complete one.
        rows = self._rows((pc.field("epoch") >= top - 1) & (pc.field("kind") == COMMITTED), top - 1)
        return max(self._remembered(rows), key=lambda done: done.epoch, default=None)

    def seen_up_to(self, source: str) -> int:
        """Return the LSN up to which a captured source has come, as the newest epoch left it."""
        return first_progress(self.last()).cut(source).seen_up_to

    def unfinished(self) -> Bound | None:
        """Return the epoch that is bound and not committed, if there is one."""
        table = self._tables.open(self._lake.epochs)
        if table is None or (top := greatest(table, "epoch")) is None:
            return None
        rows = self._rows((pc.field("epoch") == top) & (pc.field("kind") != PROJECTION), top)
        if any(row["kind"] == COMMITTED for row in rows):
            return None
        bound = [bound_of(row) for row in rows if row["kind"] == BOUND]
        # Rows come in any order. Each that leaves something out ends lower than the one before.
        return min(bound, key=lambda each: _read_by(each.end), default=None)

    def at(self, epoch: Epoch) -> Committed:
        """Return one committed epoch. Raises `NotFound`."""
        known = self.memory.get(epoch)
        if known is not None:
            return known
        this = (pc.field("epoch") == min(epoch, LARGEST)) & (pc.field("kind") == COMMITTED)
        rows = self._rows(this, min(epoch, LARGEST))
        if not rows:
            last = self.last()
            newest = 0 if last is None else last.epoch
            why = f"is not committed: the newest is {newest}"
            if 0 < epoch <= newest:
                why = "is not known any more: how long epochs are is lake.retention_days"
            raise NotFound(f"epoch {epoch} {why}", remedy="penstock epoch list")
        return self._remembered(rows)[0]

    def committed_by(self, at: datetime) -> Epoch:
        """Return the newest epoch that was committed by a time.

        Raises `NotFound` for a time to come, which would name another epoch later, and for one
        before all epochs that are known.
        """
        rows = self._tables.read(
            self._lake.epochs, where=pc.field("kind") == COMMITTED, columns=["epoch", "at"]
        )
        if rows is None or rows.num_rows == 0:
            raise NotFound("no epoch was committed yet", remedy="penstock wait --caught-up")
        known, now = rows.sort_by("epoch"), datetime.now(UTC)
        first, last = known.take([0, rows.num_rows - 1]).to_pylist()
        remedy = "Give a time that an epoch was committed by, or leave it out: penstock epoch list"
        # The clock of the pipeline's machine may be ahead of this one.
        if at > max(now, last["at"]):
            raise NotFound(
                f"{at.isoformat()} is to come: it is {now.isoformat(timespec='seconds')}, and the "
                f"newest epoch, {last['epoch']}, was committed at {last['at'].isoformat()}",
                remedy=remedy,
            )
        by_then = pc.less_equal(rows["at"], pa.scalar(at, rows["at"].type))
        found = pc.max(rows["epoch"].filter(by_then)).as_py()
        if found is None:
            raise NotFound(
                f"{at.isoformat()} is before the first epoch that is known, {first['epoch']}, "
                f"which was committed at {first['at'].isoformat()}",
                remedy=remedy,
            )
        return Epoch(found)

    def between(self, after: Epoch, up_to: Epoch) -> list[Committed]:
        """Return the committed epochs in (after, up_to], ascending."""
        known = self.memory.all_of(range(int(after) + 1, int(up_to) + 1))
        if known is not None:
            return known
        where = (pc.field("epoch") > after) & (pc.field("epoch") <= up_to)
        rows = self._rows(where & (pc.field("kind") == COMMITTED), after)
        return sorted(self._remembered(rows), key=lambda done: done.epoch)

    def _remembered(self, rows: Sequence[dict[str, object]]) -> list[Committed]:
        """Return the epochs of some rows; the last ones that were read stay known."""
        found = [committed_of(row) for row in rows]
        self.memory.add(found)
        return found

    def pending_since(self, source: str, lsn: int) -> int:
        """Return the first epoch that may have rows of transactions that ended beyond `lsn`."""
        last = self.last()
        upper, step = last.epoch if last else Epoch(0), 16
        while upper > 0:
            lower = Epoch(max(upper - step, 0))
            for done in reversed(self.between(lower, upper)):
                if done.cuts.get(source, 0) <= lsn:
                    return done.pending_from.get(source, done.epoch + 1)
            upper, step = lower, step * 4
        return 1

    def projected(self) -> dict[str, Projected]:
        """Return, per derived table, how far it has come.

        Of all rows only names and epochs are read: the others are some kilobytes each.
        """
        runs = pc.field("kind") == PROJECTION
        noted = self._tables.read(self._lake.epochs, where=runs, columns=["name", "epoch"])
        if noted is None or noted.num_rows == 0:
            return {}
        last = noted.group_by("name").aggregate([("epoch", "max")])
        epochs = sorted(pc.unique(last["epoch_max"]).to_pylist())
        of_last = reduce(or_, (pc.field("epoch") == epoch for epoch in epochs))
        rows = self._rows(runs & of_last, epochs[0])
        newest: dict[str, dict[str, object]] = {}
        for row in rows:
            name = str(row["name"])
            if name not in newest or noted_at(row) > noted_at(newest[name]):
                newest[name] = row
        return {name: projected_of(row) for name, row in newest.items()}

    def history_of(self, name: str) -> list[Projected]:
        """Return every run of one derived table, ascending by epoch, then as they were noted."""
        rows = self._rows((pc.field("kind") == PROJECTION) & (pc.field("name") == name))
        return [projected_of(row) for row in sorted(rows, key=noted_at)]

    def _again(self, name: str) -> Guard:
        app, table = f"{_APP}/{name}", self._tables.open(self._lake.epochs)
        return Guard(app, Epoch(((mark_of(table, app) if table else None) or 0) + 1))

    def _rows(self, where: pc.Expression, since: int = 0) -> list[dict[str, object]]:
        found = self._tables.read(self._lake.epochs, where=where, since=("epoch", since))
        return [] if found is None else list(found.to_pylist())


def _read_by(end: Offsets) -> int:
    """Return how many records of all topics there are before these offsets."""
    return sum(sum(places.values()) for places in end.values())


def first_progress(last: Committed | None) -> Progress:
    """Return what an epoch left to the next one, but for many transactions that are pending."""
    return Progress() if last is None else Progress.from_json(last.progress)
