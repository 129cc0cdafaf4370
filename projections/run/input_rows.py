"""Rows of a plan's inputs as Arrow, read in this process: what is needed of them, file by file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from kernel.errors import Incompatible, NotFound
from kernel.positions import Epoch
from lake.datasets import dataset_at, scanner_of, schema_of
from lake.file_actions import actions_of
from lake.file_merges import FileMerges
from lake.key_places import NOWHERE, places_of
from lake.layout import Lake
from lake.ranges import (
    Condition,
    Range,
    actions_within,
    dataset_within,
    filter_of,
    rows_within,
)
from lake.small_files import SmallFiles
from lake.tables import Tables, greatest
from pipeline.typed.columns import EPOCH, LATE
from projections.run.database import arrow_schema, arrow_type
from projections.run.relations import LakeCatalog, retyped
from projections.sql.operators.shape import ORDER, Input, InputKind, Plan
from projections.sql.operators.tree import Scan
from projections.sql.words.catalog import Column

DELETED = "_deleted"
"""Column of a history that says whether the row was deleted with this version."""
_ORDERED = pa.schema(
    [("_time", pa.timestamp("us", "UTC")), ("_seq_hi", pa.int64()), ("_seq_lo", pa.int64())]
)


def without_rows(name: str) -> NotFound:
    """Return the error for an input that nothing has come to: its table begins with a row."""
    return NotFound(
        f"{name} has no rows yet",
        remedy="It goes on with the first one. If its name is right: penstock table list",
        first_row=name,
    )


def table_of(read: Scan | Input) -> str:
    """Name the table of the lake that an input reads which is not a stream."""
    kind = "projection" if read.kind is InputKind.PROJECTION else "history"
    return f"{kind}/{read.name}"


def input_tables(plan: Plan, catalog: LakeCatalog) -> list[str]:
    """Name the tables that a plan reads: typed ones of its streams, histories, projections."""
    return _tables_of(plan.inputs, catalog)


def _tables_of(inputs: Iterable[Scan | Input], catalog: LakeCatalog) -> list[str]:
    names: list[str] = []
    for item in inputs:
        stream = item.kind is InputKind.STREAM
        names += catalog.members(item.name) if stream else [table_of(item)]
    return names


def input_bytes(lake: Lake, tables: Tables, plan: Plan, catalog: LakeCatalog) -> int:
    """Return the size of the files of all tables that a plan reads."""
    return bytes_read(lake, tables, plan.inputs, catalog)


def bytes_read(
    lake: Lake, tables: Tables, inputs: Iterable[Scan | Input], catalog: LakeCatalog
) -> int:
    """Return the size of the files of all tables that inputs read; of each input its own."""
    opened = (tables.open(lake.path(name)) for name in _tables_of(inputs, catalog))
    return sum(pc.sum(actions_of(t)["size_bytes"]).as_py() or 0 for t in opened if t is not None)


def table_at(lake: Lake, tables: Tables, name: str, version: int | None) -> DeltaTable:
    """Open a table at a version, its newest where none is asked for. Raises `NotFound`."""
    table = tables.open(lake.path(name))
    if table is None:
        raise without_rows(name)
    if version is None or version == table.version():
        return table
    return DeltaTable(lake.path(name), version=version)


def anything_new(
    lake: Lake, tables: Tables, plan: Plan, catalog: LakeCatalog, after: Epoch | None
) -> bool:
    """Say, from file statistics alone, whether any input has rows newer than an epoch.

    To who has none yet everything is new.
    """
    if after is None:
        return True
    read = [tables.open(lake.path(name)) for name in input_tables(plan, catalog)]
    newest = [greatest(table, EPOCH) for table in read if table is not None]
    return any(epoch is not None and epoch > after for epoch in newest)


def versions_read(
    lake: Lake, tables: Tables, plan: Plan, pinned: Mapping[str, int]
) -> dict[str, int]:
    """Return the versions of the other projections' tables that a plan reads.

    Raises `NotFound` for one that has no table yet.
    """
    names = {table_of(each) for each in plan.inputs if each.kind is InputKind.PROJECTION}
    free = {name: table_at(lake, tables, name, None) for name in names - pinned.keys()}
    return {name: free[name].version() if name in free else pinned[name] for name in names}


def facts(
    lake: Lake,
    tables: Tables,
    catalog: LakeCatalog,
    scan: Scan,
    conditions: Sequence[Condition],
    *,
    late: bool,
    small: SmallFiles,
) -> Iterator[pa.Table]:
    """Yield the facts of a stream that meet all conditions, without `late` those that came in time.

    They have the scan's columns, NULL where a typed table lacks one, and those of `ORDER`. Rows of
    small files are looked for in `small` first. Raises `NotFound` before the stream's first row.
    """
    members = catalog.members(scan.name)
    if not members:
        raise without_rows(scan.name)
    for member in members:
        table = tables.open(lake.path(member))
        where = None if table is None else filter_of(table, conditions)
        if table is None or where is None:
            continue
        present = {*schema_of(table).names}
        own = [each.name for each in scan.columns if each.name in present]
        asked = [each.column for each in conditions if each.column in present]
        columns = [*dict.fromkeys([*own, *ORDER, *asked, LATE])]
        files, rows = small.split(table, actions_within(table, conditions), columns)
        where = where if late else where & ~pc.field(LATE)
        timely = pc.invert(rows[LATE])
        if not late and not pc.all(timely, skip_nulls=False).as_py():
            rows = rows.filter(timely)
        yield _shaped(scan, rows_within(rows, [c for c in conditions if c.column in asked]))
        if files is not None:
            for batch in scanner_of(files, where, columns).to_batches():
                yield _shaped(scan, pa.table(batch))


def fact_schema(scan: Scan) -> pa.Schema:
    """Return the columns that `facts` gives."""
    return pa.schema([*arrow_schema(scan.columns), *_ORDERED])


def version_schema(scan: Scan) -> pa.Schema:
    """Return the columns that `versions` gives."""
    own = arrow_schema(scan.columns)
    further = (pa.field("valid_from", pa.timestamp("us", "UTC")), pa.field(DELETED, pa.bool_()))
    return pa.schema([*own, *(each for each in further if each.name not in own.names)])


def epochs(after: int, up_to: int) -> Range:
    """Return the condition that rows came in the epochs (after, up_to]."""
    return Range(column=EPOCH, lower=after + 1, upper=up_to + 1)


def _shaped(scan: Scan, rows: pa.Table) -> pa.Table:
    types = {each.name: arrow_type(each) for each in scan.columns}
    present = {*rows.schema.names}
    columns = {
        name: rows[name].cast(kind) if name in present else pa.nulls(rows.num_rows, kind)
        for name, kind in types.items()
    }
    return pa.table(columns | {name: rows[name] for name in ORDER})


def versions(scan: Scan, table: DeltaTable, conditions: Sequence[Condition]) -> Iterator[pa.Table]:
    """Yield the versions of a history that meet all conditions, those of deleted rows too.

    They have the scan's columns, `valid_from` and `_deleted`.
    """
    where = filter_of(table, conditions)
    if where is None:
        return
    schema = arrow_schema(scan.columns)
    needed = [*dict.fromkeys([*schema.names, "valid_from", DELETED])]
    for batch in scanner_of(dataset_within(table, conditions), where, needed).to_batches():
        rows = pa.table(batch)
        columns = {field.name: rows[field.name].cast(field.type) for field in schema}
        yield pa.table({name: columns.get(name, rows[name]) for name in needed})


def rows_of_keys(
    table: DeltaTable,
    keys: pa.Table,
    conditions: Sequence[Condition],
    columns: Sequence[Column],
    merges: FileMerges | None = None,
) -> pa.Table | None:
    """Return the rows that a projection's table has of some keys, with the epoch of each.

    The rows of all keys meet the conditions, and each key is there once. Rows of files that
    `merges` holds, as it wrote them, are not read. None where the table lacks one of the columns,
    or has one, or the keys, under another type. Raises `Incompatible` where a key is there twice.
    """
    stored, names = schema_of(table), [each.name for each in columns]
    certain = arrow_schema([each for each in columns if each.type])
    if not {*names, EPOCH} <= {*stored.names}:
        return None
    if retyped(stored, certain) or retyped(stored, keys.schema):
        return None
    where = filter_of(table, conditions)
    assert where is not None, "the table has the columns"
    wanted = pa.schema([stored.field(name) for name in (*names, EPOCH)])
    found, unread = [wanted.empty_table()], list[str]()
    for path in actions_within(table, conditions)["path"].to_pylist():
        held = None if merges is None else merges.held(table, path, stored)
        if held is None:
            unread.append(path)
        else:
            found.append(_with_keys(held.select(wanted.names), keys, table))
    files = dataset_at(table, unread)
    for batch in scanner_of(files, where, wanted.names).to_batches() if unread else ():
        found.append(_with_keys(pa.table(batch).cast(wanted), keys, table))
    rows = [part for part in found if part.num_rows]
    # What each part has once, two of them may have twice.
    return _with_keys(pa.concat_tables(found), keys, table) if len(rows) > 1 else (rows or found)[0]


def _with_keys(rows: pa.Table, keys: pa.Table, table: DeltaTable) -> pa.Table:
    """Return the rows that have one of some keys. Raises `Incompatible` for one that is twice."""
    own = rows.select(keys.schema.names).cast(keys.schema)
    places = places_of(own, keys)
    if places is None:
        raise repeated(own, table.table_uri)
    return rows.filter(pa.array(places != NOWHERE))


def repeated(keys: pa.Table, uri: str) -> Incompatible:
    """Return what is wrong with a projection's table that has one of some keys twice.

    It is named where it is among `keys` twice, or the only one.
    """
    counted = keys.group_by(keys.schema.names).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1)).slice(0, 1)
    twice = twice if keys.num_rows > 1 else counted
    key = ", ".join(f"{n} = {twice[n][0]}" for n in keys.schema.names) if twice.num_rows else ""
    name = uri.rstrip("/").rpartition("/projection/")[2].partition("/")[0]
    return Incompatible(
        f"the table of {name} has a key more than once{key and f': {key}'}; something else wrote "
        "to it",
        remedy=f"Build its rows anew: penstock replay apply {name}, penstock replay verify {name}, "
        f"then penstock replay swap {name} --yes --reason WHY",
    )


def written_in(rows: pa.Table) -> Epoch:
    """Return the newest epoch that one of some rows was written in; 0 for none."""
    return Epoch(pc.max(rows[EPOCH]).as_py() or 0)


def placed(scan: Scan, files: ds.Dataset, alone: pc.Expression | None = None) -> Iterator[pa.Table]:
    """Yield rows of a table with their place in time; see `rendering.batch.scanned`.

    `alone`: those for which a condition holds.
    """
    types = {each.name: arrow_type(each) for each in scan.columns}
    versioned = scan.kind is not InputKind.PROJECTION
    where = {
        InputKind.HISTORY: ~pc.field(DELETED),
        InputKind.LATEST: ~pc.field(DELETED) & pc.field("valid_to").is_null(),
    }.get(scan.kind)
    if alone is not None:
        where = alone if where is None else where & alone
    needed = [*dict.fromkeys([*types, *(["valid_from"] if versioned else [])])]
    for batch in scanner_of(files, where, needed).to_batches():
        rows = pa.table(batch)
        zero = pa.array([0] * rows.num_rows, pa.int64())
        begun = rows["valid_from"] if versioned else zero.cast(pa.timestamp("us", "UTC"))
        columns = {name: rows[name].cast(kind) for name, kind in types.items()}
        yield pa.table(columns | {"_time": begun, "_seq_hi": zero, "_seq_lo": zero})
