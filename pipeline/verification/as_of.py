"""A captured table as of exactly one LSN of its source.

    current at the last epoch whose cut is at or below L
    + the log's changes of transactions whose END lies in (cut, L]      = the table at L

The log has everything up to L once a later epoch's cut has reached L. The table is read at its
newest version that still stands at that epoch: a commit that ingest did not make is seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from kernel.errors import NotFound, Overloaded
from kernel.positions import Epoch, Lsn, lsn_to_text
from lake.datasets import dataset_of
from lake.layers import EPOCH, read_whole, tail_name
from lake.layout import Lake, changes_log, current_name
from lake.table_columns import TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables, standing
from lake.writer import DELETE, OP
from pipeline.commit.manifest import Committed, Manifest, first_progress
from pipeline.current.newest_images import DELETED
from pipeline.current.tables import after_truncate
from pipeline.ddl.held_tables import release_command
from pipeline.ddl.unchanged_values import any_of, rows_of_keys
from pipeline.log.images import newest_per_key, row_images
from pipeline.position.progress import Progress
from pipeline.verification.lake_state import LakeState, Layer
from schemas.records import Operation
from schemas.registry import SchemaLookup

MOST_CHANGES = 250_000
"""Changes between cut and L that are held in memory; a later L has fewer."""
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


class StateReader:
    """Reads captured tables of one lake as of an LSN. For one thread."""

    def __init__(self, lake: Lake, tables: Tables, schemas: SchemaLookup) -> None:
        self._lake = lake
        self._tables = tables
        self._schemas = schemas
        self._manifest = Manifest(lake, tables)

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
        held = first_progress(last).cut(source).waiting_for()
        cut = lsn_to_text(Lsn(last.cuts.get(source, 0)))
        return f"the cut is at {cut}" + (f" and waits for {held}" if held else "")

    def progress(self) -> Progress:
        """Return what the newest epoch carries over."""
        return first_progress(self.last())

    def held(self, source: str, between: Between) -> dict[str, str]:
        """Return the tables of a source that stand still, and why, with the way out."""
        return _held(first_progress(between.reached), source)

    def held_now(self, source: str) -> dict[str, str]:
        """Return the tables of a source that stand still in the newest epoch."""
        return _held(self.progress(), source)

    def table(
        self, source: str, table: str, between: Between, *, key: tuple[str, ...], soft: bool
    ) -> TableState:
        """Open a table as of `between.lsn`.

        Raises `Overloaded` when more changes lie in between than memory is to hold: look again at
        a later LSN.
        """
        name = current_name(source, table)
        at = self._standing(name, between.base)
        layers: list[Layer] = []
        base = None
        if name in at:
            handle = DeltaTable(self._lake.path(name), version=at[name].version)
            base = dataset_of(handle)
            done = handle.transaction_version(name) or 0
            tail = self._tail(name, at, done, key)
            layers += [] if tail is None else [tail]
        changes = self._changes(source, table, between)
        cleared, rest = after_truncate(changes) if changes is not None else (False, None)
        if cleared:
            base, layers = None, []
        if rest is not None and rest.num_rows:
            layers.append(self._newest(name, {} if cleared else at, rest))
        return TableState(
            state=LakeState(key=key, base=base, layers=tuple(layers), soft=soft),
            epoch=between.base.epoch,
            versions=at,
        )

    def changed_keys(
        self, source: str, table: str, after: Lsn, up_to: Committed, *, since: Committed
    ) -> tuple[bool, pa.Table | None]:
        """Return whether the table was truncated, and the keys that changed, after an LSN.

        Counts transactions whose END lies in (after, cut of `up_to`]; `since` is an epoch whose
        cut is at or below `after`.
        """
        found = self._rows_between(source, table, since, up_to, after=after)
        if found is None or found.num_rows == 0:
            return False, None
        truncated = pc.any(pc.equal(found["operation"], Operation.TRUNCATE.value)).as_py()
        rows = found.filter(pc.not_equal(found["operation"], Operation.TRUNCATE.value))
        if rows.num_rows == 0:
            return bool(truncated), None
        images, keys = row_images(rows, self._schemas, stored=lambda wanted: None)
        return bool(truncated), images.select(list(keys)).group_by(list(keys)).aggregate([])

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
                if (table.transaction_version(name) or 0) <= base.epoch:
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

    def _changes(self, source: str, table: str, between: Between) -> pa.Table | None:
        cut = Lsn(between.base.cuts.get(source, 0))
        if cut >= between.lsn:
            return None
        return self._rows_between(
            source, table, between.base, between.reached, after=cut, up_to=between.lsn
        )

    def _rows_between(
        self,
        source: str,
        table: str,
        since: Committed,
        reached: Committed,
        *,
        after: Lsn,
        up_to: Lsn | None = None,
    ) -> pa.Table | None:
        """Read the log's rows of a table, of transactions whose END is in (after, up_to]."""
        path = self._lake.path(changes_log(source))
        end = Lsn(reached.cuts.get(source, 0)) if up_to is None else up_to
        lsn, epoch = pc.field("lsn"), pc.field("epoch")
        # An END may have come long before its rows, which may have come long before the cut.
        ends = self._tables.read(
            path,
            where=(pc.field("table") == TRANSACTIONS_TABLE)
            & (lsn > after)
            & (lsn <= end)
            & (epoch <= reached.epoch),
            columns=["transaction_id"],
        )
        if ends is None or ends.num_rows == 0:
            return None
        of_them = pc.is_in(pc.field("transaction_id"), ends["transaction_id"].combine_chunks())
        first = min(since.pending_from.get(source, since.epoch + 1), since.epoch + 1)
        within = (epoch >= first) & (epoch <= reached.epoch) & ~pc.field("snapshot")
        where = (pc.field("table") == table) & within & of_them
        log = self._tables.open(path)
        assert log is not None, "its END rows were just read"
        dataset = dataset_of(log)
        if dataset.count_rows(filter=where) > MOST_CHANGES:
            raise Overloaded(
                f"more than {MOST_CHANGES} changes of {table} lie between {lsn_to_text(after)}"
                f" and {lsn_to_text(end)}",
                remedy="Verify again: a later moment has fewer.",
            )
        found: pa.Table = dataset.to_table(filter=where)
        return found

    def _newest(self, name: str, at: dict[str, TableAt], changes: pa.Table) -> Layer:
        def stored(wanted: pa.Table) -> pa.Table | None:
            rows = read_whole(self._lake, self._tables, name, at=at, where=any_of(wanted))
            return rows_of_keys(rows, wanted)

        images, keys = row_images(changes, self._schemas, stored=stored)
        return _layer(newest_per_key(images, keys))


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
