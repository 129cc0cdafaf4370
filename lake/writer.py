"""Guarded commits to Delta tables: the same write twice has the effect of one.

Every write carries a guard (app id, epoch) that Delta records in the commit. A writer first asks
the table for the last epoch of that app id and does nothing when it is not older; two writers with
one app id at the same moment conflict, and one of them fails: that is the fence.

Two implementations stand behind one contract: `ArrowWriter` commits a bounded Arrow table from the
driver in milliseconds, `SparkWriter` (in `spark_writer`) a frame of any size from the executors.
deltalake never skips by itself, and a MERGE without effect makes no commit at all: both are
handled here, so that after every call the table's guard equals the given epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import (
    CommitProperties,
    DeltaTable,
    WriterProperties,
    write_deltalake,
)

from kernel.errors import LeaseLost
from kernel.positions import DeltaVersion, Epoch
from lake.datasets import schema_of
from lake.exactness import as_stored
from lake.file_appends import appended
from lake.file_merges import FileMerges, Twice, Upserts
from lake.guarded_commits import committing, guarded, mark_of, marked
from lake.key_places import last_of_zeros
from lake.local_commits import came_before
from lake.log_lengths import shorten
from lake.pruning import within
from lake.table_settings import TABLE_SETTINGS
from lake.tables import Tables
from schemas.identifiers import datafusion_name

_TRIES = 4
OP = "__op"
UPSERT = "upsert"
DELETE = "delete"

R = TypeVar("R", contravariant=True)


@dataclass(frozen=True, slots=True)
class Guard:
    """Identifies a write: the writer's app id and the epoch that it commits.

    `again`: the table has the epoch, and its rows are put right. Whoever writes so computes what is
    different from what the table has, so that doing it twice is harmless. `after`: the epoch that
    the table has until then, 0 for none; for a write that is of all epochs behind that one.
    """

    app_id: str
    epoch: Epoch
    again: bool = False
    after: Epoch | None = None


class TableWriter(Protocol[R]):
    """Commits rows under a guard. `R` is what holds them: an Arrow table or a Spark frame.

    Order: one call is one commit. Duplicates: a guard that the table has already reached makes the
    call do nothing. Durability: when a call returns, readers see the commit.
    Raises `LeaseLost` when another writer committed under the same app id meanwhile, and
    `Incompatible` where a stored column's type would change values of rows that are added.
    """

    def append(
        self, path: str, rows: R, guard: Guard, *, partition_by: Sequence[str] = ()
    ) -> DeltaVersion:
        """Append rows; columns that the table lacks are added to it."""
        ...

    def merge(
        self, path: str, rows: R, guard: Guard, *, keys: Sequence[str], newer: Sequence[str] = ()
    ) -> DeltaVersion:
        """Upsert or delete by key, as column `__op` of each row says.

        One row per key, in which null is a value like any other. It replaces the stored row whole:
        columns that it lacks become null. With `newer`, it does so only when its tuple of these
        columns is greater or equal.
        """
        ...

    def overwrite(self, path: str, rows: R, guard: Guard) -> DeltaVersion:
        """Replace all rows and the table's columns."""
        ...


def reached(table: DeltaTable | None, guard: Guard) -> bool:
    """Say whether a table has this guard's epoch, or a later one, already.

    Raises `LeaseLost` where it has one between `guard.after` and that: somebody else wrote a part.
    """
    if table is None:
        return False
    last = mark_of(table, guard.app_id)
    if last is not None and (last > guard.epoch or (last == guard.epoch and not guard.again)):
        return True
    if guard.after is not None and (last or 0) != guard.after:
        raise LeaseLost(
            f"another writer committed to {guard.app_id}: it has epoch {last or 0}, and what was "
            f"to come is behind {guard.after}"
        )
    return False


class ArrowWriter:
    """Commits Arrow tables from this process through deltalake."""

    def __init__(self, tables: Tables, *, files: FileMerges | None = None) -> None:
        """`files` makes merges of little data; without it as by default."""
        self._tables = tables
        self._files = files or FileMerges()

    def append(
        self, path: str, rows: pa.Table, guard: Guard, *, partition_by: Sequence[str] = ()
    ) -> DeltaVersion:
        """Append rows; see `TableWriter`."""
        return self.append_told(path, rows, guard, partition_by=partition_by)[0]

    def append_told(
        self, path: str, rows: pa.Table, guard: Guard, *, partition_by: Sequence[str] = ()
    ) -> tuple[DeltaVersion, bool]:
        """Append rows as `append` does; say too whether it was this call that wrote them."""
        table = self._tables.ensure(path, rows.schema, partition_by=partition_by)
        new = not reached(table, guard)
        if new:
            self._add(table, rows, guard)
        return DeltaVersion(table.version()), new

    def append_all(self, path: str, parts: Sequence[tuple[pa.Table, Guard]]) -> None:
        """Append rows under several guards in one commit, without those whose guard is reached.

        The parts have the same columns, and no two of them one app id.
        """
        table = self._tables.ensure(path, parts[0][0].schema)
        new = [(rows, guard) for rows, guard in parts if not reached(table, guard)]
        if new:
            rows = pa.concat_tables([rows for rows, _ in new])
            first, *others = [guard for _, guard in new]
            self._add(table, rows, first, others)

    def claim(self, path: str, rows: pa.Table, guard: Guard) -> None:
        """Append rows as the first to write this epoch; for tables with several writers.

        Raises `LeaseLost` when somebody else has it already, where `append` would see its own
        earlier write.
        """
        table = self._tables.ensure(path, rows.schema)
        if reached(table, guard):
            raise LeaseLost(f"epoch {guard.epoch} of {guard.app_id} was written by somebody else")
        self._add(table, rows, guard)

    def overwrite(self, path: str, rows: pa.Table, guard: Guard) -> DeltaVersion:
        """Replace everything; see `TableWriter`."""
        table = self._tables.ensure(path, rows.schema)
        if not reached(table, guard):
            self._write(table, rows, guard, mode="overwrite", schema_mode="overwrite")
        return DeltaVersion(table.version())

    def replace(
        self, table: DeltaTable, rows: pa.Table, guard: Guard, properties: WriterProperties
    ) -> DeltaVersion:
        """Replace all rows that a table has at the handle's version, and none of its columns."""
        self._write(table, rows, guard, mode="overwrite", written_as=properties)
        return DeltaVersion(table.version())

    def mark_all(self, path: str, column: str, guard: Guard) -> None:
        """Set a boolean column of every row to true.

        The table must have the column. Raises as `merge` does.
        """
        table = self._tables.open(path)
        if table is None or reached(table, guard):
            return
        before = table.version()
        with _committing(table, guard, f"updating {table.table_uri}"):
            table.update(
                {datafusion_name(column): "true"},
                commit_properties=guarded(guard.app_id, guard.epoch),
            )
        if table.version() == before:
            self.append(path, schema_of(table).empty_table(), guard)

    def merge(
        self,
        path: str,
        rows: pa.Table,
        guard: Guard,
        *,
        keys: Sequence[str],
        newer: Sequence[str] = (),
        twice: Twice | None = None,
    ) -> DeltaVersion:
        """Upsert or delete by key; see `TableWriter`.

        Raises what `twice` makes where the table has one of the keys more than once: before
        anything is written, or behind a MERGE, which has changed all rows of the key.
        """
        table = self._tables.ensure(path, rows.drop_columns([OP]).schema)
        if reached(table, guard):
            return DeltaVersion(table.version())
        added = [f for f in rows.schema if f.name != OP and f.name not in schema_of(table).names]
        if added:
            empty = pa.schema(added).empty_table()
            write_deltalake(table, empty, mode="append", schema_mode="merge")
            table.update_incremental()
        shorten(guard.app_id, table)
        if rows.num_rows == 0:
            return self.append(path, schema_of(table).empty_table(), guard)
        if table.count() == 0:
            keep = pc.equal(rows[OP], UPSERT)
            return self.append(path, rows.filter(keep).drop_columns([OP]), guard)
        rows = as_stored(schema_of(table), rows, table.table_uri)
        rows = last_of_zeros(rows, keys, pc.equal(rows[OP], UPSERT))
        what = Upserts(
            rows=rows.drop_columns([OP]),
            gone=pc.equal(rows[OP], DELETE),
            keys=keys,
            newer=newer,
            twice=twice,
        )
        if self._files.merge(table, what, guard.app_id, guard.epoch, again=guard.again):
            return DeltaVersion(table.version())
        before = table.version()
        met = self._merge(table, rows, guard, keys=keys, newer=newer)
        if twice is not None and met > rows.num_rows:
            raise twice(rows.select(list(keys)), table.table_uri)
        if table.version() == before:
            return self.append(path, schema_of(table).empty_table(), guard)
        return DeltaVersion(table.version())

    def _merge(
        self,
        table: DeltaTable,
        rows: pa.Table,
        guard: Guard,
        *,
        keys: Sequence[str],
        newer: Sequence[str],
    ) -> int:
        """Have deltalake merge; return how many rows of the table it updated or deleted."""
        match_keys = " AND ".join(_same_key(key, rows) for key in keys)
        bounds = within(rows, list(keys), "t")
        if bounds is not None:
            match_keys += f" AND ({bounds})"
        columns = {
            datafusion_name(n): datafusion_name(n, of="s") for n in rows.schema.names if n != OP
        }
        # A row replaces the stored one whole: what it does not have is null from then on.
        columns |= {
            datafusion_name(n): "NULL"
            for n in schema_of(table).names
            if datafusion_name(n) not in columns
        }
        op = datafusion_name(OP, of="s")
        upsert = f"{op} = '{UPSERT}'"
        update_when = f"{upsert} AND {_not_older(newer)}" if newer else upsert
        delete_when = f"{op} = '{DELETE}'"
        with _committing(table, guard, f"merge into {table.table_uri}"):
            done: dict[str, Any] = (
                table.merge(
                    unsliced(rows),
                    match_keys,
                    source_alias="s",
                    target_alias="t",
                    commit_properties=guarded(guard.app_id, guard.epoch),
                )
                .when_matched_delete(delete_when)
                .when_matched_update(columns, predicate=update_when)
                .when_not_matched_insert(columns, predicate=upsert)
                .execute()
            )
        return int(done["num_target_rows_updated"]) + int(done["num_target_rows_deleted"])

    def _add(
        self, table: DeltaTable, rows: pa.Table, guard: Guard, others: Sequence[Guard] = ()
    ) -> None:
        """Append rows, behind whatever others commit meanwhile under app ids of their own.

        deltalake gives up after fifteen commits of others, which come fast where they are ours.
        """
        apps = [each.app_id for each in (guard, *others)]
        for tries in range(_TRIES, 0, -1):
            behind = table.version()
            try:
                self._write(table, rows, guard, mode="append", schema_mode="merge", others=others)
            except LeaseLost:
                table.update_incremental()
                if tries == 1 or came_before(table, behind, apps) is not None:
                    raise
            else:
                return

    def _write(
        self,
        table: DeltaTable,
        rows: pa.Table,
        guard: Guard,
        *,
        mode: Literal["append", "overwrite"],
        schema_mode: Literal["merge", "overwrite"] | None = None,
        written_as: WriterProperties | None = None,
        others: Sequence[Guard] = (),
    ) -> None:
        shorten(guard.app_id, table)
        guards = (guard, *others)
        if schema_mode != "overwrite":
            rows = as_stored(schema_of(table), rows, table.table_uri)
            told = [(each.app_id, each.epoch) for each in guards]
            if mode == "append" and appended(table, rows, told, again=guard.again):
                return
        before = table.version()
        with _committing(table, guard, f"writing {rows.num_rows} rows to {table.table_uri}"):
            write_deltalake(
                table,
                unsliced(rows),
                mode=mode,
                schema_mode=schema_mode,
                configuration=dict(TABLE_SETTINGS) if schema_mode == "overwrite" else None,
                # None stands for deltalake's own, which its overloads leave out.
                writer_properties=cast(WriterProperties, written_as),
                commit_properties=_properties(guards),
            )
        marked(table, before, {each.app_id: int(each.epoch) for each in guards})


def _properties(guards: Sequence[Guard]) -> CommitProperties:
    first, *others = guards
    also = [(each.app_id, each.epoch) for each in others]
    return guarded(first.app_id, first.epoch, also=also)


def _committing(table: DeltaTable, guard: Guard, what: str) -> AbstractContextManager[None]:
    return committing(table, guard.app_id, guard.epoch, what, again=guard.again)


def with_op(rows: pa.Table, op: str) -> pa.Table:
    """Say of rows what a merge is to do with them: `UPSERT` or `DELETE`."""
    return rows.append_column(OP, pa.repeat(pa.scalar(op), rows.num_rows))


def upserts_and_deletes(rows: pa.Table, gone: pa.Table) -> pa.Table:
    """Return what a merge takes: `rows` as they are now, and what is `gone`, by its keys."""
    return pa.concat_tables(
        [with_op(rows, UPSERT), with_op(gone, DELETE)], promote_options="permissive"
    ).select([*rows.schema.names, OP])


def unsliced(rows: pa.Table) -> pa.Table:
    """Return rows whose columns deltalake can take: a batch that begins within a column's memory,
    where a struct of that column holds a struct, makes it abort the whole process.
    """
    if not any(_holds_nested_structs(kind) for kind in rows.schema.types):
        return rows
    batches = [
        batch.take(pa.array(range(batch.num_rows), pa.int64())) for batch in rows.to_batches()
    ]
    return pa.Table.from_batches(batches, rows.schema)


def _holds_nested_structs(kind: pa.DataType, *, within: bool = False) -> bool:
    """Return whether a struct is in a struct; `within`: whether one is around `kind`."""
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    struct = pa.types.is_struct(kind)
    return (struct and within) or any(
        _holds_nested_structs(each, within=within or struct) for each in inner
    )


def _same_key(name: str, rows: pa.Table) -> str:
    """Compare a column of keys: null is a value like any other.

    The equation alone, which is looked up by hash, where no row has a null.
    """
    new, old = datafusion_name(name, of="s"), datafusion_name(name, of="t")
    if not rows[name].null_count:
        return f"{old} = {new}"
    return f"({old} = {new} OR ({old} IS NULL AND {new} IS NULL))"


def _not_older(columns: Sequence[str]) -> str:
    """Compare tuples in SQL: (s.a, s.b) >= (t.a, t.b)."""
    *firsts, last = columns
    condition = f"{datafusion_name(last, of='s')} >= {datafusion_name(last, of='t')}"
    for name in reversed(firsts):
        new, old = datafusion_name(name, of="s"), datafusion_name(name, of="t")
        condition = f"{new} > {old} OR ({new} = {old} AND ({condition}))"
    return f"({condition})"
