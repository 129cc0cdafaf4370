"""One Avro type to one Arrow type, and how its values are read.

Covers plain Avro with its logical types (events) and Debezium's semantic types (captured rows).
Types that Debezium would alter come as PostgreSQL's own text (`stack/connect/PostgresText.java`)
and are read by `schemas.pg_text`; `docs/reference/capture-types.md` lists all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import SchemaViolation
from schemas import debezium
from schemas.json_values import LOGICAL_BASES
from schemas.lake_columns import lake_columns
from schemas.pg_decimals import decimal_in
from schemas.pg_exact import ExactReading
from schemas.pg_moments import MICROS_MAX, MICROS_MIN, time_text
from schemas.pg_text import read_column
from schemas.pg_types import LOCAL_MICROS, UTC_MICROS, SourceColumn, lake_type
from schemas.union_texts import json_text, union_text

Convert = Callable[[Any], Any]
Build = Callable[[list[Any]], pa.Array]

_PLAIN: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}


_OPEN: Mapping[str, Any] = {}
"""Stands for a record whose own fields are being read."""

_DAY = range(86_400_000_000 + 1)
"""Microseconds: PostgreSQL has the hour 24, too."""

NOTHING = pa.null()
"""Type of what no value is known of: nulls only, and objects, lists and maps of nothing else.

Parquet cannot hold an object without fields. Such a field is no column until a value is known."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """An Arrow type with its reader: `convert` per value, `build` for a whole column at once.

    `convert` None: values go to Arrow as fastavro gives them. `build` None: convert each. `source`:
    values are PostgreSQL's text of that type. `lost` gives the text of a value that the type
    cannot hold, None for one that it can.
    """

    arrow: pa.DataType
    convert: Convert | None = None
    build: Build | None = None
    source: SourceColumn | None = None
    lost: Callable[[Any], str | None] | None = None

    def called(self, name: str) -> ColumnType:
        """Return the type as that of a column of this name, which messages then say."""
        return (
            self if self.source is None else replace(self, source=replace(self.source, name=name))
        )

    def read(self, values: pa.Array) -> ExactReading:
        """Make a column of PostgreSQL's text, for a type with `source`."""
        assert self.source is not None, "only text of PostgreSQL is read this way"
        return read_column(self.source, values)

    def lost_texts(self, values: list[Any]) -> dict[int, str]:
        """Return the texts of the values that the type cannot hold, by place."""
        if self.source is not None:
            lost = self.read(pa.array(values, pa.string())).lost
            places = [] if lost is None else [i for i, gone in enumerate(lost.to_pylist()) if gone]
            return {place: values[place] for place in places}
        if self.lost is None:
            return {}
        found = {i: self.lost(value) for i, value in enumerate(values) if value is not None}
        return {place: text for place, text in found.items() if text is not None}

    def array(self, values: list[Any]) -> pa.Array:
        """Make a column; None stays null."""
        if self.source is not None:
            return self.read(pa.array(values, pa.string())).values
        if self.build is not None:
            return self.build(values)
        if self.convert is not None:
            convert = self.convert
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, type=self.arrow)


def column_type(avro: Any, named: dict[str, Any]) -> ColumnType:
    """Map an Avro type. `named` collects the definitions met so far, by their full names.

    Raises `SchemaViolation` for what is not Avro.
    """
    if isinstance(avro, list):
        return _union(avro, named)
    if isinstance(avro, str):
        return ColumnType(_PLAIN[avro]) if avro in _PLAIN else _reference(avro, named)
    name = full_name(avro)
    if name is not None:
        named[name] = avro
    meaning = avro.get("connect.name") or _logical_type(avro)
    semantic = _SEMANTIC.get(meaning) if meaning else None
    return semantic(avro) if semantic is not None else _structural(avro, named)


def _logical_type(avro: Mapping[str, Any]) -> str | None:
    """Return the logical type; None on another type than its own, where it means nothing."""
    meaning = avro.get("logicalType")
    return meaning if avro.get("type") in LOGICAL_BASES.get(str(meaning), ()) else None


def opened(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the names known where a record's own fields begin: the record's, as open."""
    name = full_name(record)
    return {} if name is None else {name: _OPEN}


def full_name(avro: Mapping[str, Any]) -> str | None:
    """Return the full name of a named type's definition, None for unnamed types."""
    if avro.get("type") not in ("record", "enum", "fixed"):
        return None
    name, namespace = str(avro["name"]), avro.get("namespace")
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _reference(name: str, named: dict[str, Any]) -> ColumnType:
    """Read a type that was defined before. A record within itself has no end of columns: text."""
    found = named.get(name)
    if found is None:
        raise SchemaViolation(f"Avro type {name!r} is not defined in the schema")
    if found is _OPEN:
        return ColumnType(pa.string(), json_text)
    return column_type(found, named)


def _union(branches: list[Any], named: dict[str, Any]) -> ColumnType:
    rest = [branch for branch in branches if branch != "null"]
    if not rest:
        return ColumnType(pa.null())
    if len(rest) == 1:
        return column_type(rest[0], named)
    for branch in rest:
        column_type(branch, named)  # What it defines may be referred to by later fields.
    return ColumnType(pa.string(), union_text(branches, named, column_type))


def _structural(avro: Mapping[str, Any], named: dict[str, Any]) -> ColumnType:
    kind = avro.get("type")
    match kind:
        case "record":
            return _struct(avro, named)
        case "array":
            return _list(avro, named)
        case "map":
            values = column_type(avro["values"], named)
            if values.arrow == NOTHING:
                return ColumnType(NOTHING)
            return ColumnType(pa.map_(pa.string(), values.arrow), _each_pair(values.convert))
        case "int" if avro.get("connect.type") in ("int16", "int8"):
            return ColumnType(pa.int16())
        case "string":
            return _text(avro)
        case "bytes" if _is_foreign(avro):
            return ColumnType(pa.string(), bytes.decode)
        case str() if kind in _PLAIN:
            return ColumnType(_PLAIN[kind])
        case list() | dict():
            return column_type(kind, named)
        case _:
            raise SchemaViolation(f"{avro!r} is not an Avro type")


def _text(avro: Mapping[str, Any]) -> ColumnType:
    parameters = avro.get("connect.parameters") or {}
    if debezium.TEXT in parameters:
        column = debezium.source_column(parameters)
        return ColumnType(lake_type(column), source=column)
    source = debezium.source_type(parameters)
    if source is None or source.name not in ("NUMERIC", "MONEY"):
        return ColumnType(pa.string())
    return _numeric(source)


def _is_foreign(avro: Mapping[str, Any]) -> bool:
    """Types that Debezium does not know (pg_lsn, multirange) come as their text's bytes."""
    source = debezium.source_type(avro.get("connect.parameters") or {})
    return source is not None and source.name != "BYTEA" and "connect.name" not in avro


def _numeric(source: debezium.SourceType) -> ColumnType:
    if source.decimal is None:
        text = debezium.whole_text if source.is_whole else debezium.numeric_text
        return ColumnType(pa.string(), text)
    kind = pa.decimal128(*source.decimal)

    def convert(text: str) -> Decimal | None:
        return decimal_in(debezium.numeric_text(text), kind)

    def lost(text: str) -> str | None:
        return debezium.numeric_text(text) if convert(text) is None else None

    return ColumnType(kind, convert, lost=lost)


def _list(avro: Mapping[str, Any], named: dict[str, Any]) -> ColumnType:
    source = debezium.source_type(avro.get("connect.parameters") or {})
    if source is not None and source.name in ("_NUMERIC", "_MONEY"):
        item = _numeric(source)
    else:
        item = column_type(avro["items"], named)
    if item.arrow == NOTHING:
        return ColumnType(NOTHING)
    return ColumnType(pa.list_(item.arrow), _each(item.convert))


def _struct(avro: Mapping[str, Any], named: dict[str, Any]) -> ColumnType:
    open_ = opened(avro)
    defined = {name: named[name] for name in open_}
    named |= open_
    types = [column_type(f["type"], named) for f in avro["fields"]]
    named |= defined
    own = [str(f["name"]) for f in avro["fields"]]
    fields = {
        name: (column, kind)
        for name, column, kind in zip(own, lake_columns(own), types, strict=True)
        if kind.arrow != NOTHING
    }
    if not fields:
        return ColumnType(NOTHING)
    arrow = pa.struct([pa.field(column, kind.arrow) for column, kind in fields.values()])
    if all(name == column and kind.convert is None for name, (column, kind) in fields.items()):
        return ColumnType(arrow)

    def convert(record: Mapping[str, Any]) -> dict[str, Any]:
        return {
            column: value if kind.convert is None or value is None else kind.convert(value)
            for name, (column, kind) in fields.items()
            for value in (record[name],)
        }

    return ColumnType(arrow, convert)


def _each(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _each_pair(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda values: list(values.items())
    return lambda values: [(k, None if v is None else convert(v)) for k, v in values.items()]


def _date(_: Mapping[str, Any]) -> ColumnType:
    return ColumnType(pa.date32(), debezium.clamped_date, lost=debezium.lost_date)


def _moment(unit_micros: float, arrow: pa.DataType) -> Callable[[Mapping[str, Any]], ColumnType]:
    """Timestamps kept as integers; `unit_micros` is the number of microseconds in one unit."""

    def convert(value: int) -> int:
        micros = value // 1000 if unit_micros < 1 else value * int(unit_micros)
        return debezium.clamped_micros(micros)

    def build(values: list[Any]) -> pa.Array:
        if unit_micros != 1:
            return pa.array([None if v is None else convert(v) for v in values], type=arrow)
        integers = pa.array(values, pa.int64())
        bounds = pc.min_max(integers)
        low, high = bounds["min"].as_py(), bounds["max"].as_py()
        if low is None or (low >= MICROS_MIN and high <= MICROS_MAX):
            return integers.view(arrow)
        return pa.array([None if v is None else convert(v) for v in values], type=arrow)

    def lost(value: int) -> str | None:
        micros = value // 1000 if unit_micros < 1 else value * int(unit_micros)
        return debezium.lost_micros(micros, zoned=arrow == UTC_MICROS)

    return lambda _: ColumnType(arrow, convert, build, lost=lost)


def _zoned(_: Mapping[str, Any]) -> ColumnType:
    def one(text: str) -> Any:
        return pa.scalar(debezium.clamped_zoned(text)).cast(UTC_MICROS).as_py()

    def build(values: list[Any]) -> pa.Array:
        try:
            moments = pa.array(values, pa.string()).cast(UTC_MICROS)
            # Arrow refuses years that have a sign, but reads the year 0, which is 1 BC.
            first = pc.min(moments.view(pa.int64())).as_py()
            if first is None or first >= MICROS_MIN:
                return moments
        except pa.ArrowInvalid:
            pass
        texts = [None if value is None else debezium.clamped_zoned(value) for value in values]
        return pa.array(texts, pa.string()).cast(UTC_MICROS)

    return ColumnType(UTC_MICROS, one, build, lost=debezium.lost_zoned)


def _time(unit_micros: float) -> Callable[[Mapping[str, Any]], ColumnType]:
    def micros_of(value: int) -> int:
        return value // 1000 if unit_micros < 1 else value * int(unit_micros)

    def lost(value: int) -> str | None:
        return None if micros_of(value) in _DAY else f"{value}, which is no time of a day"

    return lambda _: ColumnType(pa.string(), lambda value: time_text(micros_of(value)), lost=lost)


def _decimal(avro: Mapping[str, Any]) -> ColumnType:
    scale = int(avro.get("scale", 0))
    parameters = avro.get("connect.parameters") or {}
    precision = int(avro.get("precision") or parameters.get("connect.decimal.precision", 38))

    def convert(value: bytes) -> Decimal:
        return debezium.unscaled(value, scale)

    if precision <= 38 and scale <= precision:
        return ColumnType(pa.decimal128(precision, scale), convert)
    return ColumnType(pa.string(), lambda value: format(convert(value), "f"))


def _variable_decimal(_: Mapping[str, Any]) -> ColumnType:
    def convert(value: Mapping[str, Any]) -> str:
        return format(debezium.unscaled(value["value"], value["scale"]), "f")

    return ColumnType(pa.string(), convert)


def _bits(avro: Mapping[str, Any]) -> ColumnType:
    parameters = avro.get("connect.parameters") or {}
    source = debezium.source_type(parameters)
    length = int(parameters.get("length", "0"))
    fixed = length if source is None or source.name == "BIT" else None
    return ColumnType(pa.string(), lambda value: debezium.bits_text(value, fixed))


_SEMANTIC: Mapping[str, Callable[[Mapping[str, Any]], ColumnType]] = {
    "date": _date,
    "time-millis": _time(1000),
    "time-micros": _time(1),
    "timestamp-millis": _moment(1000, UTC_MICROS),
    "timestamp-micros": _moment(1, UTC_MICROS),
    "local-timestamp-millis": _moment(1000, LOCAL_MICROS),
    "local-timestamp-micros": _moment(1, LOCAL_MICROS),
    "decimal": _decimal,
    "org.apache.kafka.connect.data.Decimal": _decimal,
    "org.apache.kafka.connect.data.Date": _date,
    "org.apache.kafka.connect.data.Time": _time(1000),
    "org.apache.kafka.connect.data.Timestamp": _moment(1000, UTC_MICROS),
    "io.debezium.time.Date": _date,
    "io.debezium.time.Time": _time(1000),
    "io.debezium.time.MicroTime": _time(1),
    "io.debezium.time.NanoTime": _time(0.001),
    "io.debezium.time.Timestamp": _moment(1000, LOCAL_MICROS),
    "io.debezium.time.MicroTimestamp": _moment(1, LOCAL_MICROS),
    "io.debezium.time.NanoTimestamp": _moment(0.001, LOCAL_MICROS),
    "io.debezium.time.ZonedTimestamp": _zoned,
    "io.debezium.data.VariableScaleDecimal": _variable_decimal,
    "io.debezium.data.Bits": _bits,
}
