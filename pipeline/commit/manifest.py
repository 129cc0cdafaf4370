"""The manifest `lake/epochs`: which input offsets became which table versions.

Three kinds of row. `bound`: epoch E will be made of exactly these offsets; written before anything
else. `committed`: epoch E is complete, with the versions that belong to it; only now do readers
who ask for consistency see it. `projection`: a projection has taken input up to E; such rows are a
convenience, rebuilt from the projection's own table.
An epoch is committed once, and never reused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Conflict, LeaseLost, NotFound
from kernel.positions import CLOSED, Epoch, Offsets, TopicId
from lake.layout import Lake
from lake.log_lengths import SHORT
from lake.table_columns import UTC_MICROS
from lake.tables import TableAt, Tables, greatest
from lake.writer import ArrowWriter, Guard
from pipeline.ddl.held_tables import Hold
from pipeline.position.progress import Progress

BOUND, COMMITTED, PROJECTION = "bound", "committed", "projection"
TYPED = "typed"
"""The name under which typed and history tables note how far they were brought."""

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
    ]
)
"""`installs`, `held`, `topics`, `meaning` came later: rows without took, held and know none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """An epoch and the offsets `[start, end)` that it is made of.

    `installs`: numbers of the announcements (`pipeline.installs.install_book`) that it takes in;
    None as long as nobody has looked for them, which ingest does before it binds. `topics`: the
    topics that the offsets belong to.
    """

    epoch: Epoch
    run_id: str
    batch_id: int
    start: Offsets
    end: Offsets
    installs: tuple[int, ...] | None = None
    topics: Mapping[str, TopicId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A complete epoch: what it carried over and which table versions belong to it.

    `heads`: store -> contiguous head position. `cuts`: source -> LSN of the last folded commit.
    `pending_from`: source -> first epoch with rows that are not foldable yet. `installs`: numbers
    of the announcements whose rows became part of the tables. `topics`: the topics that the
    offsets `end` belong to.
    """

    epoch: Epoch
    run_id: str
    batch_id: int
    end: Offsets
    progress: str
    heads: Mapping[str, int]
    cuts: Mapping[str, int]
    pending_from: Mapping[str, int]
    tables: Mapping[str, TableAt]
    counts: Mapping[str, int]
    timings_ms: Mapping[str, float]
    at: datetime
    installs: tuple[int, ...] = ()
    topics: Mapping[str, TopicId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projected:
    """A projection's table (or another derived one) after a run up to `epoch`.

    `held` are derived tables that do not have the epoch; `tables` has none of them. `meaning` is
    that of the query which made all rows of a projection; empty where there is no such one.
    """

    epoch: Epoch
    name: str
    tables: Mapping[str, TableAt]
    held: Mapping[str, Hold] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    meaning: str = ""


class Manifest:
    """Reads and appends the manifest of one lake."""

    def __init__(self, lake: Lake, tables: Tables, *, app_id: str = "epochs") -> None:
        self._lake = lake
        self._tables = tables
        self._writer = ArrowWriter(tables)
        self._app_id = app_id
        self._newest: tuple[int, Committed | None] = (-1, None)
        self._made = False

    def bind(self, bound: Bound) -> None:
        """Bind an epoch to its offsets; binding it again to the same ones changes nothing.

        Raises `LeaseLost` when another run bound it to other offsets.
        """
        guard, row_of_it = Guard(f"{self._app_id}/bound", bound.epoch), _bound_row(bound)
        if not self._made:
            # Several commits of each epoch, by several threads, and nobody reads an old version.
            self._tables.ensure(self._lake.epochs, row_of_it.schema, settings=SHORT)
            self._made = True
        try:
            self._writer.claim(self._lake.epochs, row_of_it, guard)
        except LeaseLost:
            if self.unfinished() != bound:
                raise

    def leave_out(self, bound: Bound) -> None:
        """Bind an epoch that is bound already to fewer topics, before any of its rows is written.

        Who finishes it after a crash leaves the same out: tables of all topics take rows once.
        """
        self._writer.append(self._lake.epochs, _bound_row(bound), self._again("left out"))

    def commit(self, done: Committed) -> None:
        """Make an epoch visible. Doing it twice has the effect of once."""
        row = {
            "epoch": done.epoch,
            "kind": COMMITTED,
            "run_id": done.run_id,
            "batch_id": done.batch_id,
            "end_offsets": _compact(done.end),
            "progress": done.progress,
            "heads": _compact(done.heads),
            "cuts": _compact(done.cuts),
            "pending_from": _compact(done.pending_from),
            "tables": _tables_json(done.tables),
            "counts": _compact(done.counts),
            "timings_ms": _compact(done.timings_ms),
            "installs": _compact(done.installs),
            "topics": _compact(done.topics),
        }
        self._append(row, Guard(f"{self._app_id}/committed", done.epoch))

    def project(self, done: Projected, *, again: bool = False) -> None:
        """Note how far a derived table has come; `again`: anew for an epoch that it had noted.

        Raises `Conflict` for the cursor of a writer that was closed: as the greatest epoch of all
        it would hide every one that was committed.
        """
        if done.epoch >= CLOSED:
            raise Conflict(f"{done.name} was closed: it has no epoch that could be noted")
        row = {
            "epoch": done.epoch,
            "kind": PROJECTION,
            "name": done.name,
            "tables": _tables_json(done.tables),
            "counts": _compact(done.counts),
            "timings_ms": _compact(done.timings_ms),
            "held": _compact({name: hold.to_json() for name, hold in done.held.items()}),
            "meaning": done.meaning,
        }
        if again:
            self._append(row, self._again(f"{done.name}/again"))
        else:
            self._append(row, Guard(f"{self._app_id}/{done.name}", done.epoch))

    def noted(self, name: str) -> Epoch | None:
        """Return the newest epoch that a derived table has noted. Cheap."""
        table = self._tables.open(self._lake.epochs)
        done = None if table is None else table.transaction_version(f"{self._app_id}/{name}")
        return None if done is None else Epoch(done)

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
        top = greatest(table, "epoch") if table is not None else None
        if top is None:
            return None
        # Epoch `top` may be bound only; then `top - 1` is the newest complete one.
        rows = self._rows((pc.field("epoch") >= top - 1) & (pc.field("kind") == COMMITTED), top - 1)
        return max(map(_committed, rows), key=lambda done: done.epoch, default=None)

    def unfinished(self) -> Bound | None:
        """Return the epoch that is bound and not committed, if there is one."""
        table = self._tables.open(self._lake.epochs)
        if table is None or (top := greatest(table, "epoch")) is None:
            return None
        rows = self._rows((pc.field("epoch") == top) & (pc.field("kind") != PROJECTION), top)
        if any(row["kind"] == COMMITTED for row in rows):
            return None
        bound = [_bound(row) for row in rows if row["kind"] == BOUND]
        return min(bound, key=lambda each: len(each.end), default=None)

    def at(self, epoch: Epoch) -> Committed:
        """Return one committed epoch. Raises `NotFound`."""
        rows = self._rows((pc.field("epoch") == epoch) & (pc.field("kind") == COMMITTED), epoch)
        if not rows:
            raise NotFound(f"epoch {epoch} is not committed", remedy="penstock epoch list")
        return _committed(rows[0])

    def between(self, after: Epoch, up_to: Epoch) -> list[Committed]:
        """Return the committed epochs in (after, up_to], ascending."""
        where = (pc.field("epoch") > after) & (pc.field("epoch") <= up_to)
        rows = self._rows(where & (pc.field("kind") == COMMITTED), after)
        return sorted(map(_committed, rows), key=lambda done: done.epoch)

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
            if name not in newest or _noted_at(row) > _noted_at(newest[name]):
                newest[name] = row
        return {name: _projected(row) for name, row in newest.items()}

    def history_of(self, name: str) -> list[Projected]:
        """Return every run of one derived table, ascending by epoch, then as they were noted."""
        rows = self._rows((pc.field("kind") == PROJECTION) & (pc.field("name") == name))
        return [_projected(row) for row in sorted(rows, key=_noted_at)]

    def _again(self, name: str) -> Guard:
        app, table = f"{self._app_id}/{name}", self._tables.open(self._lake.epochs)
        return Guard(app, Epoch(((table and table.transaction_version(app)) or 0) + 1))

    def _append(self, row: dict[str, object], guard: Guard) -> None:
        self._writer.append(self._lake.epochs, _one_row(row), guard)
        self._tables.appended(self._lake.epochs)

    def _rows(self, where: pc.Expression, since: int = 0) -> list[dict[str, object]]:
        found = self._tables.read(self._lake.epochs, where=where, since=("epoch", since))
        return [] if found is None else list(found.to_pylist())


def first_progress(last: Committed | None) -> Progress:
    """Return what an epoch left to the next one, but for many transactions that are pending."""
    return Progress() if last is None else Progress.from_json(last.progress)


def _one_row(row: Mapping[str, object]) -> pa.Table:
    return pa.Table.from_pylist([{**row, "at": datetime.now(UTC)}], schema=SCHEMA)


def _bound_row(bound: Bound) -> pa.Table:
    row = {"epoch": bound.epoch, "kind": BOUND, "run_id": bound.run_id, "batch_id": bound.batch_id}
    row |= {"start_offsets": _compact(bound.start), "end_offsets": _compact(bound.end)}
    installs = None if bound.installs is None else _compact(bound.installs)
    return _one_row(row | {"installs": installs, "topics": _compact(bound.topics)})


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _tables_json(tables: Mapping[str, TableAt]) -> str:
    return _compact({name: [at.version, at.as_of_epoch] for name, at in tables.items()})


def _tables_at(text: object) -> dict[str, TableAt]:
    return {
        name: TableAt(version=version, as_of_epoch=epoch)
        for name, (version, epoch) in json.loads(str(text)).items()
    }


def _bound(row: Mapping[str, object]) -> Bound:
    return Bound(
        epoch=Epoch(int(str(row["epoch"]))),
        run_id=str(row["run_id"]),
        batch_id=int(str(row["batch_id"])),
        start=json.loads(str(row["start_offsets"])),
        end=json.loads(str(row["end_offsets"])),
        installs=_numbers(row),
        topics=_topics(row),
    )


def _committed(row: Mapping[str, object]) -> Committed:
    at = row["at"]
    assert isinstance(at, datetime)
    return Committed(
        epoch=Epoch(int(str(row["epoch"]))),
        run_id=str(row["run_id"]),
        batch_id=int(str(row["batch_id"])),
        end=json.loads(str(row["end_offsets"])),
        progress=str(row["progress"]),
        heads=json.loads(str(row["heads"])),
        cuts=json.loads(str(row["cuts"])),
        pending_from=json.loads(str(row["pending_from"])),
        tables=_tables_at(row["tables"]),
        counts=json.loads(str(row["counts"])),
        timings_ms=json.loads(str(row["timings_ms"])),
        at=at,
        installs=_numbers(row) or (),
        topics=_topics(row),
    )


def _numbers(row: Mapping[str, object]) -> tuple[int, ...] | None:
    kept = row.get("installs")
    return None if kept is None else tuple(json.loads(str(kept)))


def _topics(row: Mapping[str, object]) -> dict[str, TopicId]:
    kept = row.get("topics")
    found = {} if kept is None else json.loads(str(kept))
    return {name: TopicId(*topic) for name, topic in found.items()}


def _noted_at(row: Mapping[str, object]) -> tuple[int, datetime]:
    """Return the order of notes about one table: an epoch may have been noted again."""
    at = row["at"]
    assert isinstance(at, datetime)
    return int(str(row["epoch"])), at


def _held(row: Mapping[str, object]) -> dict[str, Hold]:
    kept = row.get("held")
    found = {} if kept is None else json.loads(str(kept))
    return {name: Hold.from_json(hold) for name, hold in found.items()}


def _projected(row: Mapping[str, object]) -> Projected:
    return Projected(
        epoch=Epoch(int(str(row["epoch"]))),
        name=str(row["name"]),
        tables=_tables_at(row["tables"]),
        counts=json.loads(str(row["counts"])),
        timings_ms=json.loads(str(row["timings_ms"])),
        held=_held(row),
        meaning=str(row.get("meaning") or ""),
    )
