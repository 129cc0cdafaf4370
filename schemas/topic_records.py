"""Records of an external topic to the columns that its `CREATE SOURCE` statement declares.

A value of `json` is an object: its fields are columns by name, missing ones are NULL, others are
left alone. A value of `csv` is one line with the declared columns in their order. A value of `avro`
has the five-byte framing: its fields are read as the columns of their names, or, where none are
declared, are the columns themselves.

A record without a value (a tombstone) has the columns of `key`, read from the record's own key: an
object, a line or a record as above, or the text of a single column. All other columns are NULL.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import SchemaViolation
from schemas import json_text
from schemas.columns import PRESENT, decode_rows, decode_value, event_shape
from schemas.csv_line import fields_of
from schemas.json_values import describe, inside, misfit
from schemas.registry import SchemaLookup
from schemas.topic_values import ValueType, value_type
from schemas.widening import common_type
from schemas.wire import schema_id_of

JSON, CSV, AVRO = "json", "csv", "avro"
MOMENT = pa.timestamp("us", tz="UTC")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Values = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicShape:
    """What a statement says of the records of a topic, under the name of its source.

    `columns` are (name, Spark type) in their order; none where the schemas of `avro` name them.
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

    def columns(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> pa.Table:
        """Return the columns of records, one row each, in their order.

        The column of the event time is NULL where its value is no time. Raises `SchemaViolation`,
        and whatever the reading of JSON raises, for a record that does not fit.
        """
        if self.shape.format == AVRO:
            return self._avro(keys, values)
        return self._table(
            [self.values(key, value) for key, value in zip(keys, values, strict=True)]
        )

    def values(self, key: bytes | None, value: bytes | None) -> Values:
        """Return the values of one record of `json` or `csv`, by column; see `columns`."""
        if value is None:
            return self._checked(self._of_key(key))
        if self.shape.format == JSON:
            document = json_text.parse(value)
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
        fields = fields_of(line.decode())
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
        try:
            document = json_text.parse(key)
        except ValueError:
            document = None
        if isinstance(document, dict):
            return self._of_fields({name: document.get(name) for name in names})
        return self._of_line(names, key) if len(names) > 1 else self._of_text(names[0], key)

    def _of_text(self, name: str, key: bytes) -> Values:
        text = key.decode()
        quoted = len(text) > 1 and text[0] == text[-1] == '"'
        bare = json.loads(text) if quoted else text
        return {name: self._converted(name, self.shape.types[name].from_text, bare)}

    def _avro(self, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> pa.Table:
        """Read the records of each schema together, and put them into their order."""
        ids = [None if value is None else schema_id_of(value) for value in values]
        parts: list[pa.Table] = []
        places: list[int] = []
        for each in dict.fromkeys(ids):
            own = [place for place, found in enumerate(ids) if found == each]
            places += own
            if each is None:
                parts.append(self._tombstones([keys[place] for place in own]))
            else:
                schema = self.schemas.schema(each)
                parts.append(self._resolved([values[place] for place in own], schema))
        if not parts:
            return self._table([]) if self.shape.columns else pa.table({})
        whole = parts[0] if len(parts) == 1 else _together(parts)
        order = sorted(range(len(places)), key=places.__getitem__)
        return whole.take(order) if order != list(range(len(order))) else whole

    def _resolved(self, values: Sequence[bytes | None], schema: str) -> pa.Table:
        rows = decode_rows(list(values), schema, "event")
        names = dict(zip(event_shape(schema).fields, rows.schema.names, strict=False))
        if not self.shape.columns:
            self._check_keys(rows.drop_columns([PRESENT]))
            return rows.drop_columns([PRESENT])
        found = {}
        for name, kind in self.shape.types.items():
            field = self.shape.named(list(names), name)
            column = None if field is None else rows[names[field]]
            found[name] = self._as_declared(name, column, kind.arrow, rows.num_rows)
        table = pa.table(found)
        self._check_keys(table)
        return table

    def _as_declared(
        self, name: str, column: pa.ChunkedArray | None, kind: pa.DataType, rows: int
    ) -> pa.ChunkedArray | pa.Array:
        if column is None:
            return pa.nulls(rows, kind)
        if _reads_as(column.type, kind):
            return column.cast(kind)
        if self._is_time(name):
            return pa.nulls(rows, kind)
        raise misfit(f"the schema has {column.type}, which is not read as {kind}", f".{name}")

    def _check_keys(self, rows: pa.Table) -> None:
        for wanted in self.shape.key:
            name = self.shape.named(rows.schema.names, wanted)
            if name is None or rows[name].null_count:
                raise misfit("the key has no value", f".{wanted}")

    def _tombstones(self, keys: Sequence[bytes | None]) -> pa.Table:
        rows = [self._checked(self._of_avro_key(key)) for key in keys]
        if self.shape.columns:
            return self._table(rows)
        named = {name: [row.get(name) for row in rows] for name in self.shape.key}
        return pa.table(named) if named else pa.table({PRESENT: [False] * len(rows)})

    def _of_avro_key(self, key: bytes | None) -> Values:
        names = self._key_columns()
        if not names or key is None:
            return {}
        if key[:1] != b"\0":
            return self._plain_key(names, key)
        found = decode_value(key, self.schemas.schema(schema_id_of(key)))
        if not isinstance(found, dict):
            found = {names[0]: found}
        return {name: found.get(name) for name in names}

    def _plain_key(self, names: Sequence[str], key: bytes) -> Values:
        if len(names) > 1:
            raise SchemaViolation("a key of several columns has to be framed Avro")
        if not self.shape.columns:
            return {names[0]: key.decode()}
        return self._of_text(names[0], key)


def _reads_as(found: pa.DataType, declared: pa.DataType) -> bool:
    """Say whether every value of one type is one of the other."""
    if pa.types.is_timestamp(found) and pa.types.is_timestamp(declared):
        return True
    if pa.types.is_null(found):
        return True
    if pa.types.is_int32(found) and pa.types.is_float64(declared):
        return True
    return bool(common_type(declared, found) == declared)


def _together(parts: Sequence[pa.Table]) -> pa.Table:
    """Put rows of several schemas together; whoever stores them widens their columns."""
    return pa.concat_tables(parts, promote_options="permissive")


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
