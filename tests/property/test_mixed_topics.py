"""What the decoder of an external topic lets into the log becomes typed rows, in any company."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lake.table_columns import DECODED, TOPICS
from pipeline.decode.records import decode, row_of
from pipeline.decode.topic_decoder import TopicDecoder
from pipeline.typed.topic_rows import TopicRows
from projections.run.endings import endings_of
from schemas.records import KafkaRecord, Rejected
from schemas.registry import MemoryRegistry
from schemas.topic_records import TopicShape
from schemas.wire import frame

AT = datetime(2013, 1, 1, tzinfo=UTC)
Raw = tuple[bytes | None, bytes | None]
"""Key and value of a record."""

REGISTRY = MemoryRegistry()
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
DATE = {"type": "int", "logicalType": "date"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
TYPES: dict[str, tuple[Any, Any, list[Any]]] = {
    "int": ("int", "int", [1, -(2**31)]),
    "long": ("long", "long", [1, 2**60 + 1, -(2**63)]),
    "double": ("double", "double", [1.5, -2.0]),
    "string": ("string", "string", ["1", "2013-01-01T00:00:00Z", "noon"]),
    "millis": (MILLIS, "long", [0, 1_359_590_400_000]),
    "date": (DATE, "int", [0, 15_000]),
    "decimal": (DECIMAL, "bytes", [b"\x01", b"\xff\x00"]),
    "boolean": ("boolean", "boolean", [True]),
    "nested": (
        {"type": "array", "items": "long"},
        {"type": "array", "items": "long"},
        [[1], []],
    ),
}
"""Types of fields: as registered, as written without its logical type, and values."""
COLUMNS = (
    ("id", "BIGINT"),
    ("n", "INT"),
    ("t", "STRING"),
    ("m", "DECIMAL(6, 2)"),
    ("at", "TIMESTAMP"),
    ("day", "DATE"),
    ("f", "FLOAT"),
)
JSON_VALUES: list[Any] = [
    None, 0, 1, -1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 1.5, "7x", "7", True, [1], {"a": 1},
    "2013-01-31", "2013-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", 3.4e38,
]  # fmt: skip
JSON_KEYS: list[bytes | None] = [
    None, b"7", b'"7"', b'"\\ud800"', b'{"id": 7}', b'{"id": "\\ud800"}', b"null", b"{", b'"',
    b"\xff", b"1_0", b"[7]", b"9999999999999999999",
]  # fmt: skip
CONDITIONS = (None, "n + n > 5", "1 / n = 1", "ABS(id) > 5", "t = 'gone'")


def shape(form: str, **more: Any) -> TopicShape:
    return TopicShape(source="s", topic="t", format=form, **more)


def avro(fields: Sequence[tuple[str, str, Any]]) -> bytes:
    """Frame a record of fields: name, one of `TYPES`, value."""
    spelled = [{"name": name, "type": TYPES[kind][0]} for name, kind, _ in fields]
    bare = [{"name": name, "type": TYPES[kind][1]} for name, kind, _ in fields]
    schema = {"type": "record", "name": "R", "fields": spelled}
    number = REGISTRY.register(json.dumps(schema), json.dumps(schema))
    out = io.BytesIO()
    written = fastavro.parse_schema({"type": "record", "name": "R", "fields": bare})
    fastavro.schemaless_writer(out, written, {name: value for name, _, value in fields})
    return frame(number, out.getvalue())


def decoded(declared: TopicShape, records: Sequence[Raw]) -> list[dict[str, Any]]:
    """Return the rows of the log that the decoder makes of records."""
    decoder = TopicDecoder(declared, REGISTRY)
    rows = []
    for offset, (key, value) in enumerate(records):
        record = KafkaRecord(
            topic="t", partition=0, offset=offset, timestamp=AT, key=key, value=value, headers={}
        )
        found = decode(record, decoder)
        if not isinstance(found, Rejected):
            rows.append(row_of(record, found))
    return rows


def logged(declared: TopicShape, records: Sequence[Raw]) -> pa.Table:
    """Return what enters the log of records."""
    table = pa.Table.from_pylist(decoded(declared, records), schema=DECODED)
    columns = {
        item.name: table[item.name].cast(item.type)
        if item.name in table.schema.names
        else pa.nulls(table.num_rows, item.type)
        for item in TOPICS
    }
    return pa.table(columns, schema=TOPICS)


def typed(declared: TopicShape, rows: pa.Table) -> pa.Table:
    return TopicRows(declared, REGISTRY, endings_of(declared)).of(rows)


def every_one_has_its_row(declared: TopicShape, records: Sequence[Raw]) -> pa.Table:
    rows = logged(declared, records)
    found = typed(declared, rows)
    assert found["kafka_offset"].to_pylist() == rows["offset"].to_pylist()
    return found


JSON_RECORD = st.tuples(
    st.sampled_from(JSON_KEYS),
    st.none()
    | st.dictionaries(
        st.sampled_from([name for name, _ in COLUMNS]), st.sampled_from(JSON_VALUES), max_size=4
    ).map(lambda found: json.dumps(found).encode()),
)


@given(
    records=st.lists(JSON_RECORD, max_size=12),
    key=st.sampled_from([(), ("id",), ("t",)]),
    deleted=st.sampled_from(CONDITIONS),
    event_time=st.sampled_from([None, "at"]),
)
@example(records=[(b'"\\ud800"', None)], key=("t",), deleted=None, event_time=None)
@example(
    records=[(None, b'{"n": 2147483647}'), (None, b'{"n": 3}')],
    key=(),
    deleted="n + n > 5",
    event_time=None,
)
@settings(max_examples=60, deadline=None)
def test_records_of_json_that_enter_the_log_have_typed_rows(
    records: list[Raw], key: tuple[str, ...], deleted: str | None, event_time: str | None
) -> None:
    declared = shape("json", columns=COLUMNS, key=key, deleted=deleted, event_time=event_time)
    every_one_has_its_row(declared, records)


@st.composite
def avro_records(draw: st.DrawFn) -> Raw:
    names = draw(st.lists(st.sampled_from(["id", "x", "at", "KAFKA_OFFSET"]), unique=True))
    fields = []
    for name in names:
        kind = draw(st.sampled_from([*TYPES]))
        fields.append((name, kind, draw(st.sampled_from(TYPES[kind][2]))))
    plain = st.sampled_from([None, b"7", b"x", b"\xff"])
    if draw(st.booleans()):
        return draw(plain), avro(fields)
    return (avro(fields) if draw(st.booleans()) else draw(plain)), None


@given(
    records=st.lists(avro_records(), max_size=10),
    columns=st.sampled_from([(), COLUMNS, (("Id", "DECIMAL(6, 2)"), ("at", "TIMESTAMP"))]),
    key=st.booleans(),
    event_time=st.sampled_from([None, "at"]),
    sequence=st.sampled_from([None, "x"]),
)
@example(
    records=[
        (None, avro([("x", "long", 2**60 + 1)])),
        (None, avro([("x", "string", "1")])),
        (None, avro([("x", "double", 1.5)])),
    ],
    columns=(),
    key=False,
    event_time=None,
    sequence=None,
)
@settings(max_examples=60, deadline=None)
def test_records_of_avro_that_enter_the_log_have_typed_rows(
    records: list[Raw],
    columns: tuple[tuple[str, str], ...],
    key: bool,
    event_time: str | None,
    sequence: str | None,
) -> None:
    own = sequence if not columns else None
    keys = ("id",) if key else ()
    declared = shape(
        "avro", columns=columns, key=keys, event_time=event_time, sequence=own, identity=keys
    )
    every_one_has_its_row(declared, records)


def test_a_condition_that_cannot_be_computed_ends_no_key_and_leaves_the_others_theirs() -> None:
    declared = shape("json", columns=(("n", "INT"),), deleted="n + n > 5")
    values = [b'{"n": %d}' % n for n in (1, 2**31 - 1, 3, 2, 4)]
    rows = every_one_has_its_row(declared, [(None, value) for value in values])
    assert rows["ends_key"].to_pylist() == [False, False, True, False, True]


def test_what_another_declaration_let_in_and_this_one_cannot_read_has_no_row() -> None:
    wide = (("id", "STRING"), ("v", "STRING"))
    values = [b'{"id": "k", "v": "7x"}', b'{"id": "l", "v": "8"}', b'{"v": "9"}']
    rows = logged(shape("json", columns=wide), [(None, value) for value in values])
    narrow = shape("json", columns=(("id", "STRING"), ("v", "DECIMAL(3, 0)")), key=("id",))
    found = typed(narrow, rows)
    assert found.select(["id", "v", "kafka_offset"]).to_pylist() == [
        {"id": "l", "v": 8, "kafka_offset": 1}
    ]


def test_the_event_time_is_that_of_the_declaration_and_not_of_the_one_that_logged() -> None:
    columns = (("at", "TIMESTAMP"), ("at2", "TIMESTAMP"))
    value = b'{"at": "2013-01-31T00:00:00Z", "at2": "1999-01-01"}'
    rows = logged(shape("json", columns=columns, event_time="at2"), [(None, value), (None, b"{}")])
    found = typed(shape("json", columns=columns, event_time="at"), rows)
    own = datetime(2013, 1, 31, tzinfo=UTC)
    assert found["at"].to_pylist() == found["_time"].to_pylist() == [own, AT]
    assert found["event_time_given"].to_pylist() == [True, False]
    assert found["at2"].to_pylist() == [datetime(1999, 1, 1, tzinfo=UTC), None]


def test_the_key_of_an_avro_tombstone_is_read_as_the_values_are() -> None:
    moment = 1_359_590_400_000
    for kind, declared, value in (
        ("millis", "TIMESTAMP", moment),
        ("decimal", "DECIMAL(6, 2)", b"\x01"),
        ("date", "DATE", 10),
    ):
        records = [
            (avro([("id", kind, value)]), None),
            (None, avro([("id", kind, value), ("x", "long", 1)])),
        ]
        for columns in ((("Id", declared), ("x", "BIGINT")), ()):
            rows = every_one_has_its_row(shape("avro", columns=columns, key=("ID",)), records)
            name = rows.schema.names[0]
            assert rows[name].to_pylist()[0] == rows[name].to_pylist()[1]
            assert rows["ends_key"].to_pylist() == [True, False]


def test_an_avro_key_that_is_no_record_is_the_value_of_its_column() -> None:
    number = REGISTRY.register("bare key", json.dumps("long"))
    declared = shape("avro", columns=(("id", "BIGINT"),), key=("id",))
    rows = every_one_has_its_row(declared, [(frame(number, b"\x0e"), None)])
    assert rows["id"].to_pylist() == [7]


def test_an_avro_event_time_may_be_milliseconds_or_a_text() -> None:
    moment = datetime(2013, 1, 31, tzinfo=UTC)
    records = [
        (None, avro([("at", "long", 1_359_590_400_000)])),
        (None, avro([("at", "string", "2013-01-31")])),
        (None, avro([("at", "millis", 1_359_590_400_000)])),
        (None, avro([("at", "string", "noon")])),
    ]
    for columns in ((("at", "TIMESTAMP"),), ()):
        declared = shape("avro", columns=columns, event_time="at")
        rows = every_one_has_its_row(declared, records)
        assert rows["at"].to_pylist() == rows["_time"].to_pylist() == [moment] * 3 + [AT]
        assert rows["event_time_given"].to_pylist() == [True] * 3 + [False]
        assert not decoded(declared, [(None, avro([("at", "boolean", True)]))]), "it is no time"


def test_columns_whose_names_differ_in_case_alone_are_one() -> None:
    records = [
        (None, avro([("Id", "string", "1"), ("x", "long", 1)])),
        (b"1", None),
        (None, avro([("ID", "string", "1")])),
    ]
    rows = every_one_has_its_row(shape("avro", key=("id",)), records)
    assert rows["Id"].to_pylist() == ["1"] * 3


def test_fields_that_are_called_like_columns_of_ours_keep_their_values() -> None:
    ours = ("KAFKA_OFFSET", "ends_key", "_epoch", "_time", "_operation", "event_time_given")
    value = avro([(name, "long", place) for place, name in enumerate(ours)])
    rows = every_one_has_its_row(shape("avro"), [(None, value)])
    names = [name.lower() for name in rows.schema.names]
    assert len({*names}) == len(names)
    assert [rows[f"{name}_"].to_pylist() for name in ours] == [[n] for n in range(len(ours))]
