"""Runs of projections that are kept by regions: their dataflows, from one run to the next.

A dataflow is only trusted while the projection's table is as it left it. After a crash, a commit
that failed, a swap or another query it begins anew: everything up to the epoch is taken in at once,
and what the table has is compared with what it should have. So the table is right again whatever
came in between, and rows that are right already are not written.

Of a stream a run reads the facts of its epochs. Of a table (a history, what is valid of one, the
table of another projection) it reads the files that came since and takes back the rows of those
that went: whoever wrote them, as a fold, a compaction, or the swap of a generation, what is
different between two versions is in these files. A merge writes much anew that stays as it was: of
a history the rows of changed keys are read alone, where no others are known to have changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake.datasets import (
    dataset_at,
    dataset_of,
    missing_file,
    paths_of,
    scanner_of,
    schema_of,
)
from lake.layout import Lake
from lake.small_files import SmallFiles
from lake.tables import Tables, greatest
from lake.writer import OP, UPSERT, upserts_and_deletes
from pipeline.typed.columns import EPOCH
from projections.run.database import MEMORY_BYTES, arrow_schema
from projections.run.dataflow import Dataflow
from projections.run.input_rows import epochs, facts, placed, repeated, table_at, table_of
from projections.run.relations import LakeCatalog
from projections.sql.operators.shape import InputKind, Plan
from projections.sql.operators.tree import Newest, Scan, scans

_LOOK_BACK = 32
"""Versions behind which it is not asked any more whether only compactions came in between."""
_LOOK_S = 5.0
"""So often it is asked how much a dataflow holds: of DuckDB that takes a millisecond."""
_REARRANGED = {"OPTIMIZE", "VACUUM START", "VACUUM END"}
_BY_KEY = {*_REARRANGED, "MERGE"}
_MOST_KEYS = 2_000
"""Changed keys of a history that are looked for by themselves; of more, its files are read."""


@dataclass(slots=True, kw_only=True)
class _Held:
    """A dataflow and what it stands for. `version` is the table's after its last commit.

    `bytes` are what it held when it was `looked` at last. `files` are those with the rows of the
    tables that are read, by the view of the input, `read` their versions and newest epochs.
    """

    dataflow: Dataflow
    identity: str
    epoch: int = 0
    version: int = -1
    bytes: int = 0
    looked: float = -_LOOK_S
    files: dict[str, frozenset[str]] = field(default_factory=dict)
    read: dict[str, tuple[int, int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a run reads: a plan over the tables of a lake, for one target."""

    plan: Plan
    catalog: LakeCatalog
    app_id: str
    path: str
    include_late: bool
    versions: dict[str, int]
    watermark_us: int | None = None

    @property
    def identity(self) -> str:
        """Return a text that changes with all that a dataflow's rows depend on, but the facts."""
        columns = [each.columns for each in scans(self.plan.tree)]
        return repr((self.plan.rows_sql, columns, self.include_late))


class RegionRuns:
    """Computes changes from dataflows that it keeps in memory. For one thread."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        *,
        memory_bytes: int = MEMORY_BYTES,
        small: SmallFiles | None = None,
    ) -> None:
        self._memory_bytes = memory_bytes
        self._lake = lake
        self._tables = tables
        self._held: dict[str, _Held] = {}
        self._small = small or SmallFiles()
        self._under_way: tuple[str, _Held] | None = None
        self.last: pa.Table | None = None
        """The rows that came and went in the last changes, with their weights."""

    def changes(self, reading: Reading, up_to: Epoch) -> pa.Table:
        """Return the rows to upsert and the keys to delete that bring the table to an epoch.

        Call `committed` once they are: without that the next run begins anew.
        """
        tree = reading.plan.tree
        self._drop_under_way()
        table = self._tables.open(reading.path)
        held = self._held.pop(reading.app_id, None)
        if held is not None:
            self._under_way = (reading.app_id, held)
            known = table is not None and _stands(held, reading, table)
            if not (known and self._fed(held, tree, reading, up_to)):
                self._drop_under_way()
                held = None
        fresh = held is None
        if held is None:
            held = _Held(
                dataflow=Dataflow(tree, memory_bytes=self._memory_bytes),
                identity=reading.identity,
            )
            self._under_way = (reading.app_id, held)
            self._fed(held, tree, reading, up_to)
        held.dataflow.pass_watermark(reading.watermark_us)
        if fresh and table is not None:
            twice = partial(repeated, uri=table.table_uri)
            rows = held.dataflow.begin(_stored(table, tree), twice)
        else:
            rows = held.dataflow.round()
        held.epoch = int(up_to)
        self.last = rows
        return _operations(rows, reading.plan.key)

    def first(self, reading: Reading, up_to: Epoch) -> pa.Table:
        """Return all rows of a target that has no table yet. Call `committed` once it has."""
        changes = self.changes(reading, up_to)
        return changes.filter(pc.equal(changes[OP], UPSERT)).drop_columns([OP])

    def forget(self) -> None:
        """Forget the last changes, if they were not committed: the table is written otherwise."""
        self._drop_under_way()

    def committed(self, app_id: str, version: int) -> None:
        """Take note that the last changes are in the table, which now has this version."""
        if self._under_way is not None and self._under_way[0] == app_id:
            held = self._under_way[1]
            held.version = version
            if time.monotonic() - held.looked >= _LOOK_S:
                held.bytes, held.looked = held.dataflow.state_bytes, time.monotonic()
            self._held[app_id] = held
            self._under_way = None

    def waiting(self, app_id: str) -> int | None:
        """Return how many rows of a target wait for the watermark to pass their end.

        None while its state is not held, as before the first change after a start.
        """
        held = self._held.get(app_id)
        return None if held is None else held.dataflow.waiting

    def holds(self, app_id: str) -> bool:
        """Say whether there is state of a target, so that a run reads what is new alone."""
        return app_id in self._held

    def take_over(self, other: RegionRuns, app_id: str) -> None:
        """Go on with the state that another has of a target, if it has any."""
        held = other._held.pop(app_id, None)
        if held is not None:
            self.keep_only(self._held.keys() - {app_id})
            self._held[app_id] = held

    def state_bytes(self, app_id: str) -> int | None:
        """Return how much a target's state took a few seconds ago; None where none is held."""
        held = self._held.get(app_id)
        return None if held is None else held.bytes

    def keep_only(self, app_ids: Iterable[str]) -> None:
        """Forget all dataflows but those of some targets."""
        for app_id in self._held.keys() - set(app_ids):
            self._held.pop(app_id).dataflow.close()

    def _drop_under_way(self) -> None:
        if self._under_way is not None:
            self._under_way[1].dataflow.close()
            self._under_way = None

    def _fed(self, held: _Held, tree: Newest, reading: Reading, up_to: Epoch) -> bool:
        """Give a dataflow what is new to it; False where rows to take back are not kept any more.

        The dataflow is of no use then.
        """
        for scan in scans(tree):
            if scan.kind is InputKind.STREAM:
                held.dataflow.add(scan, self._facts(scan, reading, held.epoch, up_to))
            elif not self._fed_table(held, scan, reading):
                return False
        return True

    def _fed_table(self, held: _Held, scan: Scan, reading: Reading) -> bool:
        name = table_of(scan)
        table = table_at(self._lake, self._tables, name, reading.versions.get(name))
        before, now = held.files.get(scan.view, frozenset()), paths_of(table)
        since = held.read.get(scan.view)
        held.files[scan.view] = now
        held.read[scan.view] = table.version(), greatest(table, EPOCH)
        came, gone = dataset_at(table, now - before), dataset_at(table, before - now)
        if missing_file(gone) is not None:
            return False
        where = None if since is None else _changed_keys(scan, table, *since, (came, gone))
        held.dataflow.add(scan, placed(scan, came, where))
        held.dataflow.add(scan, placed(scan, gone, where), weight=-1)
        return True

    def _facts(self, scan: Scan, reading: Reading, after: int, up_to: Epoch) -> Iterator[pa.Table]:
        late = not reading.plan.stateful or reading.include_late
        came = [epochs(after, int(up_to))]
        return facts(
            self._lake, self._tables, reading.catalog, scan, came, late=late, small=self._small
        )


def _changed_keys(
    scan: Scan,
    table: DeltaTable,
    since: int,
    newest: int | None,
    files: tuple[ds.Dataset, ds.Dataset],
) -> pc.Expression | None:
    """Return a condition on the rows of a history whose keys changed behind one of its versions.

    `newest` is the epoch that this had, `files` are those that came and those that went since. None
    where rows of other keys may have changed: one that was taken back is missed by their number.
    """
    keys, behind = scan.relation.key, table.version() - since
    told = newest is not None and scan.kind is not InputKind.PROJECTION and bool(keys)
    if not (told and {*keys} <= {*schema_of(table).names} and 0 < behind <= _LOOK_BACK):
        return None
    if any(each.get("operation") not in _BY_KEY for each in table.history(behind)):
        return None
    changed = scanner_of(files[0], pc.field(EPOCH) > newest, keys).to_table()
    where = pc.scalar(True)
    for key in keys:
        values = pc.unique(changed[key])
        if len(values) > _MOST_KEYS or values.null_count:
            return None
        where = where & pc.field(key).isin(values)
    alike = {each.count_rows() - scanner_of(each, where, keys).count_rows() for each in files}
    return where if len(alike) == 1 else None


def _stands(held: _Held, reading: Reading, table: DeltaTable) -> bool:
    """Say whether a dataflow still knows what its table has: only compactions came since."""
    behind = table.version() - held.version
    if held.identity != reading.identity or not 0 <= behind <= _LOOK_BACK:
        return False
    return behind == 0 or all(
        commit.get("operation") in _REARRANGED for commit in table.history(behind)
    )


def shape_of(tree: Newest) -> pa.Schema:
    """Return the columns of the rows that a tree gives."""
    return arrow_schema(tree.columns)


def _stored(table: DeltaTable, tree: Newest) -> Iterator[pa.Table]:
    """Yield what a projection's table has."""
    shape = shape_of(tree)
    for batch in scanner_of(dataset_of(table), None, shape.names).to_batches():
        yield pa.table(batch).select(shape.names).cast(shape)


def _operations(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Turn rows that came and went into upserts, and deletes of keys that have no row any more."""
    came = rows.filter(pc.equal(rows["_w"], 1)).drop_columns(["_w"])
    went = rows.filter(pc.equal(rows["_w"], -1)).select(list(key))
    gone = went.join(came.select(list(key)), list(key), join_type="left anti")
    return upserts_and_deletes(came, gone)
