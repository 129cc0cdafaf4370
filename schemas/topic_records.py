"""Records of an external topic to the columns that its `CREATE SOURCE` statement declares.

A value of `json` is an object: its fields are columns by name, missing ones are NULL, others are
left alone. A value of `csv` is one line with the declared columns in their order. A value of `avro`
has the five-byte framing: its fields are read as the columns of their names, or, where none are
declared, are the columns themselves.

A value or a key of `json` may have the five-byte framing, too, in front of its text.

A record without a value (a tombstone) has the columns of `key`, read from the record's own key: an
object, a line or a record as above, or the text of a single column. All other columns are NULL.
"""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import SchemaViolation
from schemas import json_text
from schemas.columns import PRESENT, event_shape
from schemas.csv_line import fields_of
from schemas.field_names import parsed
from schemas.foreign_rows import MOMENT, foreign_rows
from schemas.json_values import describe, inside, misfit
from schemas.lake_columns import OF_TOPICS, lake_columns
from schemas.registry import SchemaLookup
from schemas.topic_values import ValueType, value_type
from schemas.widening import common_type
from schemas.wire import HEADER_BYTES, schema_id_of

JSON, CSV, AVRO = "json", "csv", "avro"

_OPENS = (b"{", b'"')
"""Begin a key that is JSON; any other is the text of a column, or a line."""
_MARK = codecs.BOM_UTF8
"""Some writers begin what they write with a byte order mark."""
_BEGINS_JSON = frozenset(bytes((each,)) for each in b'{["-0123456789tfn \t\r\n')
_VALUE, _KEY, _TEXT, _NOWHERE = "value", "key", "text", "nowhere"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """What a statement says of the records of a topic, under the name of its source.

    `columns` are (name, Spark type) in their order; none where the schemas of `avro` name them.
    `declared` numbers the statement: one that says the same as one of before is another.
    """

    source: str
    topic: str
    format: str
    columns: tuple[tuple[str, str], ...] = ()
    key: tuple[str, ...] = ()
    event_time: str | None = None
    sequence: str | None = None
    identity: tuple[str, ...] = ()
    deleted: str | None = None
    declared: int = 0

    @property
    def fingerprint(self) -> str:
        """Name what the typed rows of the records depend on."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]

    @property
    def types(self) -> Mapping[str, ValueType]:
        """Return the types of the declared columns, by name."""
        return _types(self.columns)

    def named(self, names: Sequence[str], wanted: str) -> str | None:
        """Return which of some columns a name in the statement means: letter case says nothing."""
        return next((name for name in names if name.lower() == wanted.lower()), None)


@lru_cache(maxsize=256)
def _types(columns: tuple[tuple[str, str], ...]) -> Mapping[str, ValueType]:
    found = {}
    for name, spark in columns:
        kind = value_type(spark)
        assert kind is not None, f"{spark} was refused when it was declared"
        found[name] = kind
    return found


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """Reads keys and values of one topic. Picklable as its schemas are."""

    shape: TopicShape
    schemas: SchemaLookup

    def parts(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None]
    ) -> Iterator[tuple[list[int], pa.Table]]:
        """Yield the columns of records, those of each schema together, and their places.

        The column of the event time is NULL where its value is no time. Raises `SchemaViolation`,
        and whatever the reading of JSON raises, for a record that does not fit.
        """
        if self.shape.format != AVRO:
            rows = [self.values(key, value) for key, value in zip(keys, values, strict=True)]
            yield [*range(len(rows))], self._table(rows)
            return
        if not keys and self.shape.columns:
            yield [], self._table([])
        kinds = [self._written(key, value) for key, value in zip(keys, values, strict=True)]
        for kind in dict.fromkeys(kinds):
            own = [place for place, found in enumerate(kinds) if found == kind]
            texts = [keys[place] if values[place] is None else values[place] for place in own]
            yield own, self._read(kind, texts)

    def values(self, key: bytes | None, value: bytes | None) -> Values:
        """Return the values of one record of `json` or `csv`, by column; see `parts`."""
        if value is None:
            return self._checked(self._of_key(key))
        if self.shape.format == JSON:
            document = json_text.parse(_unframed(value))
            if not isinstance(document, dict):
                raise misfit(f"expected an object, found {describe(document)}")
            return self._checked(self._of_fields(document))
        return self._checked(self._of_line(tuple(self.shape.types), value))

    def _table(self, rows: Sequence[Values]) -> pa.Table:
        kinds = self.shape.types
        columns = [
            pa.array([row.get(name) for row in rows], kind.arrow) for name, kind in kinds.items()
        ]
        return pa.Table.from_arrays(columns, names=list(kinds))

    def _of_fields(self, document: Mapping[str, Any]) -> Values:
        found: Values = {}
        for name, kind in self.shape.types.items():
            value = document.get(name)
            if value is not None:
                found[name] = self._converted(name, kind.from_json, value)
        return found

    def _of_line(self, names: Sequence[str], line: bytes) -> Values:
        fields = fields_of(line.removeprefix(_MARK).decode())
        if len(fields) != len(names):
            raise SchemaViolation(f"{len(fields)} fields, and {len(names)} columns are declared")
        kinds = self.shape.types
        return {
            name: self._converted(name, kinds[name].from_text, text)
            for name, text in zip(names, fields, strict=True)
            if text is not None
        }

    def _converted(self, name: str, convert: Any, value: Any) -> Any:
        try:
            return convert(value)
        except SchemaViolation as error:
            if self._is_time(name):
                return None
            raise inside(error, f".{name}") from None

    def _is_time(self, name: str) -> bool:
        return self.shape.event_time is not None and name.lower() == self.shape.event_time.lower()

    def _checked(self, values: Values) -> Values:
        for name in self._key_columns():
            if values.get(name) is None:
                raise misfit("the key has no value", f".{name}")
        return values

    def _key_columns(self) -> list[str]:
        names = list(self.shape.types)
        return [self.shape.named(names, name) or name for name in self.shape.key]

    def _of_key(self, key: bytes | None) -> Values:
        """Read the columns of the key from a record's own key, for a record without a value."""
        names = self._key_columns()
        if not names or key is None:
            return {}
        if self.shape.format == CSV:
            return self._of_line(names, key)
        key = key[HEADER_BYTES:] if _is_framed_json(key) else key.removeprefix(_MARK)
        if key[:1] in _OPENS or key == b"null":
            document = json_text.parse(key)
            if isinstance(document, dict):
                return self._of_fields({name: document.get(name) for name in names})
            if document is None:
                return {}
        return self._of_line(names, key) if len(names) > 1 else self._of_text(names[0], key)

    def _of_text(self, name: str, key: bytes) -> Values:
        bare = json_text.parse(key) if key[:1] == b'"' else key.decode()
        return {name: self._converted(name, self.shape.types[name].from_text, bare)}

    def _written(self, key: bytes | None, value: bytes | None) -> tuple[str, int]:
        """Return where the columns of a record are, and the schema that they are written with."""
        if value is not None:
            return _VALUE, schema_id_of(value)
        if key is None or not self.shape.key:
            return _NOWHERE, 0
        return (_KEY, schema_id_of(key)) if key[:1] == b"\0" else (_TEXT, 0)

    def _read(self, kind: tuple[str, int], texts: Sequence[bytes | None]) -> pa.Table:
        where, schema_id = kind
        if where == _VALUE:
            rows = self._resolved(texts, self.schemas.schema(schema_id), None)
        elif where == _KEY:
            rows = self._of_framed(texts, self.schemas.schema(schema_id))
        elif where == _TEXT:
            rows = self._of_plain([text for text in texts if text is not None])
        else:
            rows = self._table([{}] * len(texts))
            rows = rows if self.shape.columns else pa.table({PRESENT: [False] * len(texts)})
        self._check_kinds(rows)
        return rows

    def _of_framed(self, keys: Sequence[bytes | None], schema: str) -> pa.Table:
        """Read the columns of the key; a key that is no record is the value of a single one."""
        names = self._key_columns()
        avro = parsed(schema)
        if not (isinstance(avro, dict) and avro.get("type") == "record"):
            # A record is written as its fields are, one behind the other.
            field = {"name": names[0], "type": avro}
            schema = json.dumps({"type": "record", "name": "Key", "fields": [field]})
        return self._resolved(keys, schema, names)

    def _of_plain(self, keys: Sequence[bytes]) -> pa.Table:
        """Read records that have no more than the text of a key."""
        names = self._key_columns()
        if len(names) > 1:
            raise SchemaViolation("a key of several columns has to be framed Avro")
        if self.shape.columns:
            return self._table([self._of_text(names[0], key) for key in keys])
        return pa.table({names[0]: [key.decode() for key in keys]})

    def _resolved(
        self, framed: Sequence[bytes | None], schema: str, only: Sequence[str] | None
    ) -> pa.Table:
        """Read records of one schema; of a key nothing but the columns of it, which are `only`."""
        fields = event_shape(schema).fields
        rows = foreign_rows(
            framed, schema, is_time=self._is_time, is_read=lambda name: self._is_read(name, only)
        )
        if not self.shape.columns:
            return self._as_written(rows, fields, only)
        columns = dict(zip(fields, rows.columns, strict=False))
        found: dict[str, pa.ChunkedArray | pa.Array] = {}
        for name, kind in self.shape.types.items():
            field = self.shape.named(fields, name) if only is None or name in only else None
            column = None if field is None else columns[field]
            found[name] = self._as_declared(name, column, kind.arrow, rows.num_rows)
        return pa.table(found)

    def _is_read(self, field: str, only: Sequence[str] | None) -> bool:
        """Say whether a field is a column: of the declared ones, and of those that `only` names."""
        wanted = (list(self.shape.types) if self.shape.columns else None, only)
        return all(names is None or self.shape.named(names, field) for names in wanted)

    def _as_written(
        self, rows: pa.Table, fields: Sequence[str], only: Sequence[str] | None
    ) -> pa.Table:
        """Return the columns that a schema has, under names that are none of ours."""
        found: dict[str, pa.ChunkedArray | pa.Array] = {}
        for name, column in zip(lake_columns(fields, OF_TOPICS), rows.columns, strict=False):
            if only is None or self.shape.named(only, name) is not None:
                found[name] = self._moments(name, column) if self._is_time(name) else column
        # Records may have no columns at all: then this one says how many there are.
        return pa.table(found or {PRESENT: rows[PRESENT]})

    def _as_declared(
        self, name: str, column: pa.ChunkedArray | None, kind: pa.DataType, rows: int
    ) -> pa.ChunkedArray | pa.Array:
        if column is None:
            return pa.nulls(rows, kind)
        if self._is_time(name):
            return self._moments(name, column)
        if _reads_as(column.type, kind):
            return column.cast(kind)
        raise misfit(f"the schema has {column.type}, which is not read as {kind}", f".{name}")

    def _moments(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
        """Read a column as the event time: NULL where a text or a number is no time."""
        kind = column.type
        if pa.types.is_timestamp(kind) or pa.types.is_null(kind) or pa.types.is_date(kind):
            return column.cast(MOMENT)
        if not (pa.types.is_string(kind) or pa.types.is_integer(kind)):
            raise misfit(f"the schema has {kind}, which is no time", f".{name}")
        convert = _types(((name, "TIMESTAMP"),))[name].from_json
        moments = [
            None if v is None else self._converted(name, convert, v) for v in column.to_pylist()
        ]
        return pa.array(moments, MOMENT)

    def _check_kinds(self, rows: pa.Table) -> None:
        """Refuse records whose key, identity or order is none that rows can have."""
        for wanted in self.shape.key:
            name = self.shape.named(rows.schema.names, wanted)
            if name is None or rows[name].null_count:
                raise misfit("the key has no value", f".{wanted}")
        for wanted in (*self.shape.key, *self.shape.identity):
            name = self.shape.named(rows.schema.names, wanted)
            if name is not None and pa.types.is_nested(rows[name].type):
                raise misfit(f"{rows[name].type} identifies nothing", f".{wanted}")
        order = self.shape.sequence
        name = None if order is None else self.shape.named(rows.schema.names, order)
        if name is not None and not _orders(rows[name].type):
            raise misfit(f"{rows[name].type} has no order to go by", f".{order}")


def _is_framed_json(text: bytes) -> bool:
    """Say whether JSON stands behind the five-byte framing: no JSON begins with its zero byte."""
    return text[:1] == b"\0" and text[HEADER_BYTES : HEADER_BYTES + 1] in _BEGINS_JSON


def _unframed(value: bytes) -> bytes:
    """Return the JSON of a value, without the five-byte framing that some serializers write.

    Raises `SchemaViolation` for what else they frame.
    """
    if value[:1] != b"\0":
        return value.removeprefix(_MARK)
    if not _is_framed_json(value):
        raise SchemaViolation(
            "behind the five-byte framing there is no JSON: Avro is read with format = 'avro',"
            " Protobuf is not read: write such topics as JSON or Avro"
        )
    return value[HEADER_BYTES:]


def _reads_as(found: pa.DataType, declared: pa.DataType) -> bool:
    """Say whether every value of one type is one of the other."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(declared):
        return True
    if pa.types.is_null(found):
        return True
    if pa.types.is_int32(found) and pa.types.is_float64(declared):
        return True
    return bool(common_type(declared, found) == declared)


def _orders(kind: pa.DataType) -> bool:
    """Say whether records can be ordered by the values of a type."""
    ordered = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_null)
    return any(each(kind) for each in ordered)


def moment_of(shape: TopicShape, values: Values) -> datetime | None:
    """Return the event time that the values of one record name; None where they name none."""
    if shape.event_time is None:
        return None
    name = shape.named(list(values), shape.event_time)
    micros = None if name is None else values[name]
    return None if micros is None else _EPOCH + timedelta(microseconds=micros)


def event_times(shape: TopicShape, rows: pa.Table, kafka_times: pa.Array) -> pa.Table:
    """Return the event time of records, and whether it is that of their column.

    `time`, and `own`: false where the column has none, so that the record's own Kafka timestamp
    stands for it.
    """
    name = None if shape.event_time is None else shape.named(rows.schema.names, shape.event_time)
    column = None if name is None else rows[name]
    if column is None or not pa.types.is_timestamp(column.type):
        own = pa.array([False] * len(kafka_times), pa.bool_())
        return pa.table({"time": kafka_times, "own": own})
    moments = column.cast(MOMENT)
    return pa.table({"time": pc.coalesce(moments, kafka_times), "own": pc.is_valid(moments)})
