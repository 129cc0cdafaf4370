"""Rows of Delta tables as Arrow datasets: which files, and how filters reach them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
from deltalake import DeltaTable

from lake.file_actions import actions_of
from lake.handle_answers import answer
from lake.storage import place_of

_PARTITION = "partition."
_FOOTERS = 100_000
"""Files of which is remembered whether they have texts as views."""
_seen_views: dict[tuple[str, str], bool] = {}
_PLAIN = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Reader features that do not change what a file's rows are."""


def schema_of(table: DeltaTable) -> pa.Schema:
    """Return a table's columns as a pyarrow schema."""
    return answer(table, "columns", lambda: pa.schema(table.schema().to_arrow()))


def location_of(table: DeltaTable) -> str:
    """Return where a table lies, as Spark takes it: a local path with blanks is not encoded."""
    return unquote(table.table_uri.rstrip("/"))


def files_below(table: DeltaTable) -> fs.FileSystem:
    """Return the file system in which paths are relative to a table's root."""
    return files_at(location_of(table))


def files_at(root: str) -> fs.FileSystem:
    """Return the file system in which paths are relative to a place."""
    files, path = place_of(root)
    return fs.SubTreeFileSystem(path, files)


def dataset_of(table: DeltaTable) -> ds.Dataset:
    """Return a table's files as a dataset; bounds of integers and days let filters skip files.

    Not as deltalake makes it. Filters lose rows there: a column of a file that has bounds of other
    columns only passes for null in all rows, bounds of decimals are rounded. And its file system
    calls back into Python from Arrow's threads; one that still does so while the interpreter ends
    aborts the process.
    """
    if not has_plain_files(table):
        # Which of these can be read, it knows.
        made: ds.Dataset = table.to_pyarrow_dataset(filesystem=files_below(table))
        return made
    actions = actions_of(table)
    return dataset_of_files(location_of(table), schema_of(table), actions)


def has_plain_files(table: DeltaTable) -> bool:
    """Say whether a table's rows are those of its files, with nothing else to be looked at."""
    return not {*(table.protocol().reader_features or ())} - _PLAIN


def has_whole_files(table: DeltaTable) -> bool:
    """Say whether a table's rows are those of its files, and all columns are in these."""
    return has_plain_files(table) and not table.metadata().partition_columns


def dataset_of_files(root: str, columns: pa.Schema, actions: pa.Table) -> ds.Dataset:
    """Return files below a place as a dataset, with the bounds that `actions` tell of them.

    `actions` are those of a table's log, flattened. Nothing of a Delta log is read.
    """
    bounded = [field for field in columns if _has_bounds(field, actions.schema)]
    return _dataset(root, columns, actions, bounded)


def paths_of(table: DeltaTable) -> frozenset[str]:
    """Return the files that hold a table's rows, as its log names them."""
    return frozenset(actions_of(table)["path"].to_pylist())


def dataset_at(table: DeltaTable, paths: Iterable[str]) -> ds.Dataset:
    """Return files of a table without partitions as a dataset, its own or those it had before."""
    actions = pa.table({"path": pa.array([*paths], pa.string())})
    return _dataset(location_of(table), schema_of(table), actions, ())


def _dataset(
    root: str, columns: pa.Schema, actions: pa.Table, bounded: Sequence[pa.Field]
) -> ds.Dataset:
    """Return some files below a place as a dataset, with the bounds of some of their columns."""
    files, parquet = files_at(root), ds.ParquetFileFormat()
    partitions = [name for name in actions.schema.names if name.startswith(_PARTITION)]
    needed = ["path", *partitions, *(n for f in bounded for n in _bounds_of(f.name))]
    fragments = [
        # The log writes paths as URLs.
        parquet.make_fragment(
            unquote(str(row["path"])),
            files,
            partition_expression=_values(row, partitions) & _bounds(row, bounded),
        )
        for row in _counted(actions.select(needed)).to_pylist()
    ]
    return ds.FileSystemDataset(fragments, columns, parquet, files)


def _counted(actions: pa.Table) -> pa.Table:
    """Turn days of bounds into numbers: Python has none beyond the years 1 to 9999."""
    fields = [
        field.with_type(pa.int32())
        if pa.types.is_date32(field.type) and not field.name.startswith(_PARTITION)
        else field
        for field in actions.schema
    ]
    return actions.cast(pa.schema(fields))


def _bounds_of(name: str) -> tuple[str, str, str]:
    return f"min.{name}", f"max.{name}", f"null_count.{name}"


def _has_bounds(field: pa.Field, actions: pa.Schema) -> bool:
    kind = pa.types.is_integer(field.type) or pa.types.is_date32(field.type)
    # A nested field may be called the same when it is written flat.
    return kind and all(len(actions.get_all_field_indices(n)) == 1 for n in _bounds_of(field.name))


def _bounds(row: Mapping[str, object], fields: Sequence[pa.Field]) -> pc.Expression:
    """Say what a file's statistics say of its rows."""
    expression = pc.scalar(True)
    for field in fields:
        low, high, nulls = (row[name] for name in _bounds_of(field.name))
        if low is None or high is None:
            continue
        column = pc.field(field.name)
        within = (column >= _typed(low, field.type)) & (column <= _typed(high, field.type))
        expression = expression & (within if nulls == 0 else within | column.is_null())
    return expression


def dataset_since(table: DeltaTable, column: str, least: int) -> ds.Dataset:
    """Return those files of a table as a dataset that may hold `column >= least`.

    An expression of every column's bounds of every file takes longer, for some hundred small files,
    than reading the few that matter.
    """
    actions = actions_of(table)
    bound = f"max.{column}"
    if bound not in actions.schema.names:
        return dataset_of(table)
    files = actions.filter(pc.fill_null(pc.greater_equal(actions[bound], least), True))
    return _dataset(location_of(table), schema_of(table), files, ())


def _values(row: Mapping[str, object], names: Sequence[str]) -> pc.Expression:
    """Say which values of the partition columns a file's rows have."""
    expression = pc.scalar(True)
    for name in names:
        column, value = pc.field(name.removeprefix(_PARTITION)), row[name]
        expression = expression & (column.is_null() if value is None else column == value)
    return expression


def _typed(value: object, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(value, pa.int32() if pa.types.is_date32(kind) else kind).cast(kind)


def scanner_of(
    rows: ds.Dataset,
    where: pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    **options: int,
) -> ds.Scanner:
    """Scan a dataset, each row that satisfies `where` once. `options` are the scanner's.

    Also where files have texts as views, as deltalake's MERGE, UPDATE and DELETE write them: Arrow
    cannot compare the bounds of such a file with a text.
    """
    chosen = list(columns) if columns else None
    needed = None if where is None else _needed_for_views(rows, where)
    if where is None or needed is None:
        return rows.scanner(columns=chosen, filter=where, **options)
    files = [*rows.get_fragments(where)]
    whole = ds.FileSystemDataset(files, rows.schema, rows.format, rows.filesystem)
    names = [n for n in rows.schema.names if chosen is None or n in chosen or n in needed]
    read = whole.scanner(columns=names, **options).to_reader()
    return ds.Scanner.from_batches(read, columns=chosen, filter=where, **options)


def for_duckdb(rows: ds.Dataset, columns: Sequence[str] | None = None) -> ds.Dataset | ds.Scanner:
    """Return what DuckDB can filter and read several times; see `scanner_of`.

    Of files with views all `columns` are read, whatever the query asks for.
    """
    if not _have_views(rows.get_fragments()):
        return rows
    return rows.scanner(columns=list(columns) if columns else None)


def _needed_for_views(rows: ds.Dataset, where: pc.Expression) -> set[str] | None:
    """Return the columns of a filter that compares texts of files with views; None for others."""
    try:
        told = str(where)
    except UnicodeDecodeError:
        named = {*rows.schema.names}  # Arrow cuts a long text in it amid a character.
    else:
        named = {n for n in rows.schema.names if re.search(rf"(?<!\w){re.escape(n)}(?!\w)", told)}
    compared = any(_is_text(rows.schema.field(name).type) for name in named)
    return named if compared and _have_views(rows.get_fragments(where)) else None


def _have_views(fragments: Iterable[ds.Fragment]) -> bool:
    return any(map(_has_views, fragments))


def _has_views(part: ds.Fragment) -> bool:
    """Say whether a file has texts as views. It never changes, so its footer is read once."""
    place = None
    if isinstance(part, ds.FileFragment) and isinstance(part.filesystem, fs.SubTreeFileSystem):
        place = part.filesystem.base_path, part.path
        if place in _seen_views:
            return _seen_views[place]
    found = any(_is_view(field.type) for field in part.physical_schema)
    if place is not None:
        if len(_seen_views) >= _FOOTERS:
            _seen_views.clear()
        _seen_views[place] = found
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def in_columns(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return rows in other columns, under the types of these; those that they lack are null."""
    known = {*rows.schema.names}
    found = [
        rows[field.name].cast(field.type)
        if field.name in known
        else pa.nulls(rows.num_rows, field.type)
        for field in columns
    ]
    return pa.table(found, schema=columns)


def missing_file(rows: ds.Dataset) -> str | None:
    """Return a file of a dataset that is not there any more."""
    if isinstance(rows, ds.FileSystemDataset):
        for info in rows.filesystem.get_file_info(rows.files):
            if info.type is fs.FileType.NotFound:
                return str(info.path)
    return None
