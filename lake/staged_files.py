"""Files that are written below a table's root, and become part of it by a commit of the caller.

Readers see none of them before the commit and all of them after it. Statistics go along, so that
readers go on skipping files.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from lake.datasets import files_at, location_of
from lake.storage import make_folder

ROW_GROUP_BYTES = 32 * 2**20
"""Arrow bytes that are collected before a row group is written."""

_STATISTICS_TEXT = 64
"""So much of a text stands in the statistics at most: longer ones would fill the log."""
_LONG_TEXT = 256
"""A column with a text of more bytes has its bounds from us."""
_GREATEST = chr(0x10FFFF)
"""Stands behind what is left of a text that is an upper bound, as Spark has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlace:
    """Where files lie below a table's root, and how they are written.

    `stem` makes their names unique, `values` are those of the table's partition columns. A row
    group has at most about `group_rows` rows.
    """

    stem: str
    values: Mapping[str, str] = field(default_factory=dict)
    group_rows: int = 2**31

    @property
    def folder(self) -> str:
        """Return the folder of the partition, as Delta's writers call it; empty without one."""
        return "/".join(f"{name}={quote(value, safe='')}" for name, value in self.values.items())

    def path(self, number: int) -> str:
        """Return the path of a file, by its number."""
        name = f"part-{number:05d}-{self.stem}.parquet"
        return f"{self.folder}/{name}" if self.values else name


class StagedFiles:
    """Writes rows to Parquet files below a table's root; the caller commits what `close` returns.

    A file ends where the columns change: rows of one file have the same ones. What was not
    committed is garbage to every reader. `place` says where the files lie and how they are called.
    `schemas` and `counts` are the columns and the rows of each file, in the order of `close`.
    """

    def __init__(self, table: DeltaTable | str, place: FilePlace | None = None) -> None:
        """`table` is the table, or the path of one that may not be there yet."""
        root = table if isinstance(table, str) else location_of(table)
        self._place = place or FilePlace(stem=uuid.uuid4().hex)
        self._files = files_at(root)
        make_folder(f"{root}/{self._place.folder}")
        self._adds: list[AddAction] = []
        self._writer: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []
        self._path = ""
        self._pending: list[pa.Table] = []
        self._pending_bytes = self._pending_rows = 0
        self._nan: set[str] = set()
        self._texts: list[_TextBounds] = []
        self.rows = 0
        self.schemas: list[pa.Schema] = []
        self.counts: list[int] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows. At most one row group is kept in memory."""
        if rows.num_rows == 0:
            return
        if self._writer is None or not self._writer.schema.equals(rows.schema):
            self._end_file()
            self._begin_file(rows)
        for bounds in self._texts:
            bounds.take(rows[bounds.name])
        self._pending.append(rows)
        self._pending_bytes += rows.nbytes
        self._nan |= nan_columns(rows)
        self.rows += rows.num_rows
        self._pending_rows += rows.num_rows
        if self._pending_bytes >= ROW_GROUP_BYTES or self._pending_rows >= self._place.group_rows:
            self._flush()

    def close(self) -> list[AddAction]:
        """End the last file; return all of them."""
        self._end_file()
        return self._adds

    @property
    def paths(self) -> frozenset[str]:
        """The files that were written to their end, by their paths below the table's root."""
        return frozenset(add.path for add in self._adds)

    def discard(self) -> None:
        """Take the files away again, as far as storage lets us."""
        names = [add.path for add in self._adds]
        if self._path and self._path not in names:
            names.append(self._path)
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
            self._writer = None
        for name in names:
            with suppress(OSError):
                self._files.delete_file(name)

    def _begin_file(self, rows: pa.Table) -> None:
        schema = rows.schema
        self._path = self._place.path(len(self._adds))
        self.schemas.append(schema)
        long = [name for name in schema.names if _is_long(rows[name])]
        self._texts = [_TextBounds(name) for name in long if pa.types.is_string(rows[name].type)]
        # Keys and times do not repeat, and what repeats packs well without a dictionary: a third
        # of the time, and smaller.
        self._writer = pq.ParquetWriter(
            self._path,
            schema,
            filesystem=self._files,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            coerce_timestamps="us",
            write_statistics=_with_bounds(schema, long) if long else True,
            metadata_collector=self._footers,
        )

    def _flush(self) -> None:
        if self._writer is not None and self._pending:
            rows = pa.concat_tables(self._pending)
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._pending, self._pending_bytes, self._pending_rows = [], 0, 0

    def _end_file(self) -> None:
        if self._writer is None:
            return
        self._flush()
        schema = self._writer.schema
        self._writer.close()
        self._writer = None
        size = self._files.get_file_info(self._path).size
        metadata = self._footers.pop()
        found = _of_file(metadata, schema, without=self._nan, texts=self._texts)
        self.counts.append(metadata.num_rows)
        self._nan = set()
        values = self._place.values
        self._adds.append(as_addition(self._path, size, values, statistics_text(found)))


def nan_columns(rows: pa.Table) -> set[str]:
    """Return the columns of floating point that have a value which is no number."""
    return {
        field.name
        for field in rows.schema
        if pa.types.is_floating(field.type)
        and pc.any(pc.is_nan(rows[field.name].cast(pa.float64()))).as_py()
    }


def staged(table: DeltaTable, rows: pa.Table, place: FilePlace | None = None) -> StagedFiles:
    """Write rows to a file, which is taken away again where that fails."""
    files = StagedFiles(table, place)
    try:
        files.write(rows)
        files.close()
    except BaseException:
        files.discard()
        raise
    return files


def as_addition(path: str, size: int, values: Mapping[str, str], statistics: str) -> AddAction:
    """Return a file below a table's root as an addition to it."""
    return AddAction(path, size, dict(values), int(time.time() * 1000), True, statistics)


@dataclass(slots=True)
class _TextBounds:
    """The bounds of a column of long texts, which are cut; Parquet would write each out, twice."""

    name: str
    low: str | None = None
    high: str | None = None
    nulls: int = 0

    def take(self, texts: pa.ChunkedArray) -> None:
        """Take the texts of some rows into account."""
        self.nulls += texts.null_count
        found = pc.min_max(texts)
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is not None:
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)


def _is_long(column: pa.ChunkedArray) -> bool:
    """Say whether a column's bounds would be long: of bytes nobody has need of them."""
    if pa.types.is_binary(column.type):
        return True
    longest = pc.max(pc.binary_length(column)).as_py() if pa.types.is_string(column.type) else 0
    return (longest or 0) > _LONG_TEXT


def _with_bounds(schema: pa.Schema, long: Collection[str]) -> list[str]:
    plain = (field.name for field in schema if not pa.types.is_nested(field.type))
    return [name for name in plain if name not in long]


def _of_file(
    metadata: pq.FileMetaData,
    schema: pa.Schema,
    *,
    without: Collection[str],
    texts: Sequence[_TextBounds],
) -> dict[str, object]:
    """Return what Parquet's own statistics say of a whole file, in the shape of an add action.

    Every column that can have bounds has them: deltalake's own datasets take one that lacks them,
    beside others that have them, for null in every row. Columns `without` hold NaN, which Parquet's
    bounds leave out and Delta's order has above all others: they have none.
    """
    plain = _plain_columns(schema)
    low: dict[str, object] = {}
    high: dict[str, object] = {}
    nulls: dict[str, int] = {}
    unknown = set(without)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            name, found = plain[place], column.statistics
            if name is None or found is None:
                continue
            if found.has_null_count:
                nulls[name] = nulls.get(name, 0) + found.null_count
            if not found.has_min_max:
                if not found.has_null_count or found.null_count < group.num_rows:
                    unknown.add(name)
                continue
            try:
                least, most = found.min, found.max
            except OverflowError:  # A day that Python has no date for.
                unknown.add(name)
                continue
            low[name] = min(low.get(name, least), least)
            high[name] = max(high.get(name, most), most)
    nulls |= {each.name: each.nulls for each in texts}
    low |= {each.name: each.low for each in texts if each.low is not None}
    high |= {each.name: each.high for each in texts if each.high is not None}
    return {
        "num_records": metadata.num_rows,
        "min": {name: _short(value) for name, value in low.items() if name not in unknown},
        "max": {
            name: _short(value, _GREATEST) for name, value in high.items() if name not in unknown
        },
        "null_count": nulls,
    }


def _plain_columns(schema: pa.Schema) -> list[str | None]:
    """Return the names of a file's columns in their order, None for each below a nested one.

    By its path alone `b` below `a` is not told from a column that is called `a.b`.
    """
    found: list[str | None] = []
    for field_ in schema:
        nested = pa.types.is_nested(field_.type)
        found += [None] * _leaves(field_.type) if nested else [field_.name]
    return found


def _leaves(kind: pa.DataType) -> int:
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(place).type) for place in range(kind.num_fields))


def _short(value: object, ending: str = "") -> object:
    if isinstance(value, str) and len(value) > _STATISTICS_TEXT:
        return value[:_STATISTICS_TEXT] + ending
    return value


def statistics_text(action: Mapping[str, object]) -> str:
    """Write a file's statistics as Delta does."""
    found = {
        "numRecords": action["num_records"],
        "minValues": _values(action.get("min")),
        "maxValues": _values(action.get("max")),
        "nullCount": _values(action.get("null_count")),
    }
    return _json({name: value for name, value in found.items() if value is not None})


def _json(value: object) -> str:
    match value:
        case Mapping():
            inner = (f"{json.dumps(name)}: {_json(each)}" for name, each in value.items())
            return f"{{{', '.join(inner)}}}"
        case Decimal():
            return f"{value:f}"  # A JSON number has as many digits as it needs.
        case _:
            return json.dumps(value)


def _values(value: object) -> object:
    match value:
        case Mapping():
            named = {name: _values(inner) for name, inner in value.items()}
            return {name: inner for name, inner in named.items() if inner is not None} or None
        case datetime():
            # Milliseconds, cut: every reader of Delta allows for that.
            moment = value.astimezone(UTC) if value.tzinfo is not None else value
            text = moment.replace(tzinfo=None).isoformat(timespec="milliseconds")
            return f"{text}Z" if value.tzinfo is not None else text
        case date():
            return value.isoformat()
        case float() if value != value or value in (float("inf"), float("-inf")):
            return None
        case bytes():
            return None
        case _:
            return value
