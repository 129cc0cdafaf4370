"""A captured table as of exactly one LSN of its source.

    current at the last epoch whose cut is at or below L
    + the log's changes of transactions whose END lies in (cut, L]      = the table at L

The log has everything up to L once a later epoch's cut has reached L. The table is read at its
newest version that still stands at that epoch: a commit that ingest did not make is seen.

DDL among these changes is planned as ingest plans it. Where it says other rows than the table's
files have (a column renamed, a type, a default), the table is `NotComparable` at L: the epoch that
has L brings the files along, so that a later LSN has them. So it is at an LSN before which the
table stood still, or was not there yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel.errors import NotComparable, NotFound
from kernel.positions import Epoch, Lsn, lsn_to_text
from lake.datasets import dataset_of, schema_of
from lake.layers import EPOCH, read_whole, tail_name
from lake.layout import Lake, changes_log, current_name
from lake.table_columns import CHANGES, SCHEMA_TABLE, TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables, standing, written_by
from lake.writer import DELETE, OP
from pipeline.commit.folds_beside import BESIDE
from pipeline.commit.manifest import Manifest, first_progress
from pipeline.commit.manifest_rows import Committed
from pipeline.current.newest_images import DELETED
from pipeline.current.tables import after_truncate
from pipeline.ddl.evolution import Planned
from pipeline.ddl.held_tables import release_command
from pipeline.ddl.steps import NOTHING, Evolution, touches_rows
from pipeline.ddl.table_plans import SchemaFollower
from pipeline.ddl.unchanged_values import any_of, rows_of_keys
from pipeline.log.images import newest_per_key, row_images
from pipeline.position.progress import Progress
from pipeline.verification.lake_state import LakeState, Layer
from schemas.records import Operation
from schemas.registry import SchemaLookup

MOST_CHANGES = 250_000
"""Changes between cut and L that are held in memory; a later L has fewer."""
NOT_YET = "the lake has no rows of it yet: it is being copied, or waits for its snapshot"
GONE = "__gone"
_LOOK_BACK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """The two epochs around an LSN: `base` is at or below it, `reached` at or above it."""

    lsn: Lsn
    base: Committed
    reached: Committed


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A table as of an LSN, and the versions that it was read from."""

    state: LakeState
    epoch: Epoch
    versions: dict[str, TableAt]


@dataclass(frozen=True, slots=True)
class _Changes:
    """Log rows of a table, and what the DDL among them means for its columns."""

    rows: pa.Table = field(default_factory=CHANGES.empty_table)
    planned: Planned = field(default_factory=lambda: Planned(evolution=NOTHING))

    @property
    def evolution(self) -> Evolution:
        return self.planned.evolution


class StateReader:
    """Reads captured tables of one lake as of an LSN. For one thread."""

    def __init__(self, lake: Lake, tables: Tables, schemas: SchemaLookup) -> None:
        self._lake = lake
        self._tables = tables
        self._schemas = schemas
        self._manifest = Manifest(lake, tables)
        self._follower = SchemaFollower(lake, tables, schemas)

    def last(self) -> Committed:
        """Return the newest epoch. Raises `NotFound` before the first."""
        last = self._manifest.last()
        if last is None:
            raise NotFound("the lake has no epoch yet", remedy="Start the pipeline: penstock up")
        return last

    def around(self, source: str, lsn: Lsn, *, since: Epoch) -> Between | None:
        """Find the epochs around an LSN among those from `since`; None until the cut reaches it.

        The cut of `since` must be at or below the LSN.
        """
        base: Committed | None = None
        for done in self._manifest.between(Epoch(since - 1), self.last().epoch):
            cut = done.cuts.get(source, 0)
            if cut <= lsn:
                base = done
            if cut >= lsn and base is not None:
                return Between(lsn=lsn, base=base, reached=done)
        return None

    def waiting_for(self, source: str) -> str:
        """Say how far the source's cut is, and what holds it."""
        last = self.last()
        progress = first_progress(last)
        # Rows of a transaction that is folded beside have all come.
        held = BESIDE if source in progress.resting else progress.cut(source).waiting_for()
        cut = lsn_to_text(Lsn(last.cuts.get(source, 0)))
        return f"the cut is at {cut}" + (f" and waits for {held}" if held else "")

    def progress(self) -> Progress:
        """Return what the newest epoch carries over."""
        return first_progress(self.last())

    def held(self, source: str, between: Between, tables: Iterable[str]) -> dict[str, str]:
        """Return those tables that stand still or are not copied yet, and why, with the way out."""
        progress = first_progress(between.reached)
        cut = progress.cut(source)
        absent = {name: NOT_YET for name in tables if not (cut.snapshot_done and cut.folds(name))}
        return absent | _held(progress, source)

    def held_now(self, source: str) -> dict[str, str]:
        """Return the tables of a source that stand still in the newest epoch."""
        return _held(self.progress(), source)

    def table(
        self, source: str, table: str, between: Between, *, key: tuple[str, ...], soft: bool
    ) -> TableState:
        """Open a table as of `between.lsn`.

        Raises `NotComparable` where that is not to be had at this LSN: DDL lies right before it,
        the table stood still or was not there, or more changes than memory is to hold.
        """
        self._refuse_partial(source, table, between)
        name = current_name(source, table)
        at = self._standing(name, between.base)
        handle = self._handle(name, at)
        changes = self._changes(source, table, between, handle)
        cleared, rest = after_truncate(changes.rows)
        layers: list[Layer] = []
        base = None
        if handle is not None and not cleared:
            base = dataset_of(handle)
            tail = self._tail(name, at, handle.transaction_version(name) or 0, key)
            layers += [] if tail is None else [tail]
            kept = [schema_of(handle), *(layer.rows.schema for layer in layers)]
            _refuse_ddl(changes.evolution, kept, table, between)
        if rest.num_rows:
            layers.append(self._newest(name, {} if cleared else at, rest, changes.evolution))
        return TableState(
            state=LakeState(key=key, base=base, layers=tuple(layers), soft=soft),
            epoch=between.base.epoch,
            versions=at,
        )

    def _refuse_partial(self, source: str, table: str, between: Between) -> None:
        """Refuse a table that the epoch at or below the LSN does not have as of its cut."""
        progress = first_progress(between.base)
        cut = progress.cut(source)
        if cut.snapshot_done and cut.folds(table) and table not in progress.held.get(source, {}):
            return
        raise NotComparable(
            f"epoch {between.base.epoch}, the last one before {lsn_to_text(between.lsn)}, does not"
            f" have all of {table}: it stood still, or was being copied"
        )

    def changed_keys(
        self, source: str, table: str, after: Lsn, up_to: Committed, *, since: Committed
    ) -> tuple[bool, pa.Table | None]:
        """Return whether any row may have changed, and the keys that did, after an LSN.

        A TRUNCATE and DDL may change any row. Counts transactions whose END lies in (after, cut of
        `up_to`]; `since` is an epoch whose cut is at or below `after`.
        """
        name = current_name(source, table)
        handle = self._handle(name, self._standing(name, since))
        found = self._between(source, table, since, up_to, after=after, handle=handle)
        rows = found.rows
        if found.planned.hold is not None or found.evolution:
            return True, None
        truncated = pc.any(pc.equal(rows["operation"], Operation.TRUNCATE.value)).as_py()
        rows = rows.filter(pc.not_equal(rows["operation"], Operation.TRUNCATE.value))
        if rows.num_rows == 0:
            return bool(truncated), None
        images, keys = row_images(rows, self._schemas, stored=lambda wanted: None)
        return bool(truncated), images.select(list(keys)).group_by(list(keys)).aggregate([])

    def _handle(self, name: str, at: Mapping[str, TableAt]) -> DeltaTable | None:
        if name not in at:
            return None
        return DeltaTable(self._lake.path(name), version=at[name].version)

    def _standing(self, name: str, base: Committed) -> dict[str, TableAt]:
        """Return the versions of a table and its tail that stand at an epoch.

        The manifest names the version after the epoch; later ones whose guard is not newer are
        compactions, folds of the tail, or changes that were not ours to make.
        """
        known = {n: at for n, at in base.tables.items() if n in (name, tail_name(name))}
        if name not in known:
            return {}
        path = self._lake.path(name)
        self._tables.forget(path)
        newest = self._tables.open(path)
        version = known[name].version
        if newest is not None:
            for candidate in range(
                newest.version(), max(version, newest.version() - _LOOK_BACK), -1
            ):
                table = DeltaTable(path, version=candidate)
                if written_by(table, name) <= base.epoch:
                    version = candidate
                    break
        known[name] = TableAt(version=version, as_of_epoch=base.epoch)
        return known

    def _tail(
        self, name: str, at: dict[str, TableAt], done: int, key: tuple[str, ...]
    ) -> Layer | None:
        """Return the newest image per key of a tail's rows that the base lacks."""
        if tail_name(name) not in at:
            return None
        tail, path = at[tail_name(name)], self._lake.path(tail_name(name))
        version = standing(path, tail_name(name), tail.version, tail.as_of_epoch)
        rows = self._tables.read(
            path, where=pc.field(EPOCH) > done, version=tail.version if version is None else version
        )
        if rows is None or rows.num_rows == 0:
            return None
        return _layer(newest_per_key(rows.sort_by([(EPOCH, "ascending")]), key))

    def _changes(
        self, source: str, table: str, between: Between, handle: DeltaTable | None
    ) -> _Changes:
        """Return what lies between the base and the LSN. Raises `NotComparable` for a hold."""
        cut = Lsn(between.base.cuts.get(source, 0))
        if cut >= between.lsn:
            return _Changes()
        ends = between.base, between.reached
        found = self._between(source, table, *ends, after=cut, up_to=between.lsn, handle=handle)
        if found.planned.hold is not None:
            # It was released since: the epochs behind that have all of it.
            raise NotComparable(f"{table} stood still: {found.planned.hold.reason}")
        return found

    def _between(
        self,
        source: str,
        table: str,
        since: Committed,
        reached: Committed,
        *,
        after: Lsn,
        up_to: Lsn | None = None,
        handle: DeltaTable | None,
    ) -> _Changes:
        """Read a table's changes in transactions whose END is in (after, up_to], and their DDL.

        `handle` is the table as of `since`, None where it was not there.
        """
        end = Lsn(reached.cuts.get(source, 0)) if up_to is None else up_to
        ids = self._transactions(source, reached, after=after, up_to=end)
        log = self._tables.open(self._lake.path(changes_log(source)))
        if log is None or len(ids) == 0:
            return _Changes()
        first = min(since.pending_from.get(source, since.epoch + 1), since.epoch + 1)
        epoch, of_them = pc.field("epoch"), pc.is_in(pc.field("transaction_id"), ids)
        within = (epoch >= first) & (epoch <= reached.epoch) & ~pc.field("snapshot") & of_them
        own = (pc.field("table") == table) & within
        dataset = dataset_of(log)
        if dataset.count_rows(filter=own) > MOST_CHANGES:
            raise NotComparable(
                f"more than {MOST_CHANGES} changes of {table} lie between {lsn_to_text(after)}"
                f" and {lsn_to_text(end)}",
                remedy="Verify again: a later moment has fewer.",
            )
        rows = {table: dataset.to_table(filter=own)}
        told = dataset.to_table(filter=(pc.field("table") == SCHEMA_TABLE) & within)
        stored = None if handle is None else schema_of(handle)
        plans = self._follower.plans(
            source,
            rows | ({SCHEMA_TABLE: told} if told.num_rows else {}),
            frozenset(ids.to_pylist()),
            lambda name: stored if name == table else None,
            from_epoch=first,
        )
        return _Changes(*plans[table])

    def _transactions(self, source: str, reached: Committed, *, after: Lsn, up_to: Lsn) -> pa.Array:
        """Return the transactions whose END is in (after, up_to]."""
        lsn = pc.field("lsn")
        # An END may have come long before its rows, which may have come long before the cut.
        ends = self._tables.read(
            self._lake.path(changes_log(source)),
            where=(pc.field("table") == TRANSACTIONS_TABLE)
            & (lsn > after)
            & (lsn <= up_to)
            & (pc.field("epoch") <= reached.epoch),
            columns=["transaction_id"],
        )
        none = pa.array([], pa.string())
        return none if ends is None else ends["transaction_id"].combine_chunks()

    def _newest(
        self, name: str, at: dict[str, TableAt], changes: pa.Table, evolution: Evolution
    ) -> Layer:
        def stored(wanted: pa.Table) -> pa.Table | None:
            rows = read_whole(self._lake, self._tables, name, at=at, where=any_of(wanted))
            return rows_of_keys(rows, wanted)

        images, keys = row_images(changes, self._schemas, stored=stored, evolution=evolution)
        return _layer(newest_per_key(images, keys))


def _refuse_ddl(
    evolution: Evolution, kept: Sequence[pa.Schema], table: str, between: Between
) -> None:
    """Refuse rows that the epoch which has the LSN writes anew: they say what was before."""
    steps = evolution.all_steps()
    if any(touches_rows(steps, schema) for schema in kept):
        raise NotComparable(
            f"DDL of {table} lies between epoch {between.base.epoch} and {lsn_to_text(between.lsn)}"
        )


def _held(progress: Progress, source: str) -> dict[str, str]:
    return {
        table: f"held since epoch {hold.from_epoch}: {hold.reason};"
        f" {release_command(source, table, hold)}"
        for table, hold in progress.held.get(source, {}).items()
    }


def _layer(rows: pa.Table) -> Layer:
    gone = pc.equal(rows[OP], DELETE)
    if DELETED in rows.schema.names:
        gone = pc.or_(gone, pc.fill_null(rows[DELETED], False))
    return Layer(rows=rows.append_column(GONE, gone), deleted=GONE)
