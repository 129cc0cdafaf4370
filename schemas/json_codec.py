"""JSON at the edge, Avro inside: values of one schema, converted both ways.

JSON -> Avro, by the schema (a JSON value that does not fit is a complaint with its path):

    boolean, string, null       as they are
    int, long                   whole number within range
    float, double               number
    bytes, fixed                base64 text
    enum                        one of its symbols
    array, map, record          list, object, object
    decimal                     text or number that fits precision and scale exactly
    date                        "2013-01-31", or days since 1970
    time-millis, time-micros    "05:15:00.25", or that unit since midnight
    timestamp-*                 "2013-01-01T05:15:00Z" with an offset, or that unit since 1970 UTC
    local-timestamp-*           the same without an offset
    uuid                        text
    union                       the first branch that the value fits

A record takes no fields that its schema does not name, except nulls, which say nothing.
Avro -> JSON gives the same texts; decimals are texts, so that no digit is lost.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

import fastavro

from kernel.errors import Incompatible, SchemaViolation
from schemas.avro_bodies import BodyReader
from schemas.compatibility import parse
from schemas.json_values import SCALARS, describe, inside, logical_converter, misfit
from schemas.wire import UNREADABLE

Convert = Callable[[Any], Any]
_PRIMITIVES = frozenset(SCALARS)


class JsonCodec:
    """Encodes and decodes the data of one schema, whose root is a record.

    Building one costs milliseconds, using it microseconds: keep it.
    """

    def __init__(self, schema_json: str) -> None:
        parsed = parse(schema_json)
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise SchemaViolation("the schema of an event must be a record: its fields are columns")
        self.schema_json = schema_json
        self.inferred = parsed.get(INFERRED_KEY) == INFERRED_VALUE
        self._reader = BodyReader(parsed)
        # What is written is raw: logical types are resolved here, with better complaints.
        self._writer = fastavro.parse_schema(_plain(parsed))
        self._convert = _Converters(parsed).root
        self._many: BodyReader | None = None

    def encode(self, data: Mapping[str, object]) -> bytes:
        """Return the Avro body (without framing) of a JSON object.

        Raises `SchemaViolation` with `path` and `complaint` for the first value that misfits.
        """
        out = io.BytesIO()
        fastavro.schemaless_writer(out, self._writer, self._convert(data))
        return out.getvalue()

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the values of an Avro body: JSON ones, and dates, times, UUIDs, decimals, bytes
        that `json_default` and orjson turn into texts.

        Raises `Incompatible` for bytes that the schema did not write.
        """
        try:
            value = self._reader.read(body)
        except (*UNREADABLE, SchemaViolation) as error:
            raise Incompatible(
                f"the data are not what their schema says: {type(error).__name__} {error}",
                remedy="Whoever appended them did not encode them: see POST /v1/encode.",
            ) from error
        return cast(dict[str, Any], value)

    def decode_many(self, bodies: Sequence[bytes]) -> list[dict[str, Any]]:
        """Return what `decode` gives for each body, in a third of the time.

        Records behind each other, with their number before and a zero behind them, are an array
        in Avro: one call reads them all.
        """
        if self._many is None:
            items = parse(self.schema_json)
            self._many = BodyReader(fastavro.parse_schema({"type": "array", "items": items}))
        joined = b"".join([_varint(len(bodies)), *bodies, b"\0"])
        try:
            read, whole = self._many.read_whole(joined)
        except (*UNREADABLE, SchemaViolation):
            return [self.decode(each) for each in bodies]
        values = cast(list[dict[str, Any]], read)
        if len(values) != len(bodies) or not whole:
            # One of them is longer than its schema says, which `decode` overlooks.
            return [self.decode(each) for each in bodies]
        return values


INFERRED_KEY = "penstock"
INFERRED_VALUE = "inferred"
"""The mark in a schema that was inferred: only those may be evolved by new data."""


def json_default(value: object) -> object:
    """Turn what orjson does not know into JSON: the `default=` of every dump of decoded data."""
    match value:
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case _:
            raise TypeError(f"no JSON for {type(value).__name__}")


def _varint(number: int) -> bytes:
    """Encode a count as Avro does."""
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


class _Converters:
    """One function per place in the schema; named types are resolved when first used."""

    def __init__(self, schema: Any) -> None:
        self._named: dict[str, Convert] = {}
        self.root = self._of(schema)

    def _of(self, schema: Any) -> Convert:
        match schema:
            case str() if schema in SCALARS:
                return SCALARS[schema]
            case str():
                return self._reference(schema)
            case list():
                return self._union(schema)
            case {"type": "record" | "error"}:
                return self._record(schema)
            case {"type": "array", "items": items}:
                return _array(self._of(items))
            case {"type": "map", "values": values}:
                return _map(self._of(values))
            case _:
                return self._simple(schema)

    def _reference(self, name: str) -> Convert:
        named = self._named
        return lambda value: named[name](value)

    def _simple(self, schema: dict[str, Any]) -> Convert:
        kind = schema["type"]
        if (logical := logical_converter(schema)) is not None:
            convert = logical
        elif kind == "enum":
            convert = _enum(tuple(schema["symbols"]))
        elif kind == "fixed":
            convert = _fixed(schema["size"])
        else:
            convert = self._of(kind)
        if "name" in schema:
            self._named[schema["name"]] = convert
        return convert

    def _union(self, branches: list[Any]) -> Convert:
        others = [branch for branch in branches if branch != "null"]
        converters = [(_branch_name(branch), self._of(branch)) for branch in others]
        if len(converters) == 1 and len(branches) == 2:
            only = converters[0][1]
            return lambda value: None if value is None else only(value)
        nullable = len(others) < len(branches)
        expected = " or ".join(_branch_name(branch) or _kind(branch) for branch in branches)

        def convert(value: Any) -> Any:
            if value is None and nullable:
                return None
            for name, branch in converters:
                try:
                    raw = branch(value)
                except SchemaViolation:
                    continue
                return raw if name is None else (name, raw)
            raise misfit(f"expected {expected}, found {describe(value)}")

        return convert

    def _record(self, schema: dict[str, Any]) -> Convert:
        fields: list[_Field] = []
        convert = _record(fields)
        self._named[schema["name"]] = convert
        fields.extend(
            (field["name"], _exact(field["type"]), self._of(field["type"]), "default" not in field)
            for field in schema["fields"]
        )
        return convert


_Field = tuple[str, type[object] | None, Convert, bool]
"""Name, the Python type that needs no conversion, the conversion, whether it must be there."""

_MISSING = object()
_EXACT: Mapping[str, type[object]] = {"string": str, "double": float, "boolean": bool}


def _exact(schema: Any) -> type[object] | None:
    """Return the type whose every value fits as it is: it spares most fields a call."""
    if isinstance(schema, list) and len(schema) == 2 and "null" in schema:
        schema = schema[1] if schema[0] == "null" else schema[0]
    return _EXACT.get(schema) if isinstance(schema, str) else None


def _record(fields: list[_Field]) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise misfit(f"expected an object, found {describe(value)}")
        raw: dict[str, Any] = {}
        for name, exact, field, required in fields:
            item = value.get(name, _MISSING)
            if type(item) is exact:
                raw[name] = item
            elif item is not _MISSING:
                try:
                    raw[name] = field(item)
                except SchemaViolation as error:
                    raise inside(error, f".{name}") from None
            elif required:
                raise misfit("required, and missing", f".{name}")
        if len(value) > len(raw):
            _refuse_unknown(value, raw)
        return raw

    return convert


def _refuse_unknown(value: dict[str, Any], raw: dict[str, Any]) -> None:
    for name in value:
        if name not in raw and value[name] is not None:
            raise misfit("not a field of the schema", f".{name}")


def _array(items: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise misfit(f"expected a list, found {describe(value)}")
        raw = []
        for index, item in enumerate(value):
            try:
                raw.append(items(item))
            except SchemaViolation as error:
                raise inside(error, f"[{index}]") from None
        return raw

    return convert


def _map(values: Convert) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise misfit(f"expected an object, found {describe(value)}")
        raw = {}
        for key, item in value.items():
            try:
                raw[key] = values(item)
            except SchemaViolation as error:
                raise inside(error, f"[{key!r}]") from None
        return raw

    return convert


def _enum(symbols: tuple[str, ...]) -> Convert:
    known = frozenset(symbols)

    def convert(value: Any) -> str:
        if isinstance(value, str) and value in known:
            return value
        raise misfit(f"expected one of {', '.join(symbols)}, found {describe(value)}")

    return convert


def _fixed(size: int) -> Convert:
    def convert(value: Any) -> bytes:
        raw: bytes = SCALARS["bytes"](value)
        if len(raw) != size:
            raise misfit(f"expected {size} bytes in base64, found {len(raw)}")
        return raw

    return convert


def _kind(schema: Any) -> str:
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _branch_name(branch: Any) -> str | None:
    """The name by which fastavro picks a branch, or None where it picks by the value."""
    kind = _kind(branch)
    if kind in _PRIMITIVES:
        return kind
    return str(branch["name"]) if isinstance(branch, dict) and kind == "record" else None


def _plain(schema: Any) -> Any:
    """Return the schema without logical types and without fastavro's marks."""
    match schema:
        case list():
            return [_plain(branch) for branch in schema]
        case {"type": kind, **rest} if set(rest) <= {"logicalType", "precision", "scale"}:
            return _plain(kind)
        case dict():
            return {
                key: _plain(value) if key in {"type", "items", "values", "fields"} else value
                for key, value in schema.items()
                if key not in {"logicalType", "precision", "scale"} and not key.startswith("__")
            }
        case _:
            return schema
