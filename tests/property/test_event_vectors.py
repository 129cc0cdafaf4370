"""Many events decoded together are what they are decoded one by one, whatever their headers say."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import fastavro
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from eventstore.decode import EventDecoder
from kernel.positions import LARGEST
from lake.table_columns import DECODED
from pipeline.decode.records import Decoder, decode_batches
from pipeline.read.driver_reads import RECORDS
from schemas.registry import MemoryRegistry
from schemas.wire import frame
from tests.support.oracles.one_by_one import AnyTopic, OneByOne
from tests.support.services.tier import examples

SCHEMA = {
    "type": "record",
    "name": "Data",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "double"]},
        {"name": "legs", "type": {"type": "array", "items": "long"}, "default": []},
    ],
}
PLAIN = {**SCHEMA, "fields": SCHEMA["fields"][:2]}
TOPIC = "lake.events.flight"
ROWS = 12

DEEP = b'{"a":' * 700 + b"{}" + b"}" * 700
ODD: dict[str, list[bytes | None]] = {
    "id": [b"CF468130-867B-49FB-8318-A28DCF1834AB", b"cf468130867b49fb8318a28dcf1834ab", b"7", b""],
    "store_id": [b"another", b"", None, b"\xff"],
    "type": ["gelöscht".encode(), b"", None],
    "stream": [b"other", b""],
    "category": [b"hotel", b""],
    "version": [b"-1", b"+7", b" 7", b"1_0", b"0x10", b"007", b"7.0", b"", str(LARGEST).encode()],
    "position": [
        b"0",
        b"-4",
        b"9223372036854775808",
        b"99999999999999999999",
        b"017",
        "٣".encode(),
    ],
    "schema_id": [b"2", b"01", b"x"],
    "data_format": [b"1", b"00", b"x", b""],
    "subject": [b"me", b"", None],
    "key_id": [b"k", None],
    "metadata": [
        b"",
        None,
        b"[]",
        b"{",
        b'{"a": 1e400}',
        '{"ü":"\\u00e9"}'.encode(),
        b'{"a":1.0}',
        DEEP,
    ],
    "tags": [b"", None, b"{}", b"[1]", b'["b","b"]', b"null"],
    "occurred_at": [
        b"2013-01-01T05:15:00.123456789Z",
        b"2013-01-01T05:15:00+02:00",
        b"2013-01-01 05:15:00Z",
        b"2013-02-30T05:15:00Z",
        b"2013-01-01T24:00:00Z",
        b"2013-01-01T05:15:60Z",
        b"2013-01-01T05:15:00",
        b"0001-01-01T00:00:00Z",
        b"9999-12-31T23:59:59.999999Z",
        b"+10000-01-01T00:00:00Z",
        b"2013-01-01T05:15Z",
    ],
    "recorded_at": [b"2013-01-01T05:15:00.1Z", b"", b"infinity"],
}


def usual(number: int) -> dict[str, bytes | None]:
    """Return the headers that the outbox sends of an event."""
    at = f"2013-01-01T05:{number:02}:00.{'123456'[: number % 7]}".rstrip(".") + "Z"
    return {
        "id": f"cf468130-867b-49fb-8318-a28dcf18{number:04}".encode(),
        "store_id": b"240eb7f4-c321-4490-8494-cfcbd8d45a87",
        "type": b"departed",
        "stream": f"flight-☃{number}".encode(),
        "category": b"flight",
        "version": str(number).encode(),
        "position": str(number + 1).encode(),
        "schema_id": b"1",
        "data_format": b"0",
        "subject": None,
        "key_id": None,
        "metadata": b'{"by":"me"}' if number % 2 else b"{}",
        "tags": b'["a:1"]',
        "occurred_at": at.encode(),
        "recorded_at": at.encode(),
    }


def body(schema: dict[str, object], number: int) -> bytes:
    """Return an event's data."""
    out = io.BytesIO()
    data = {"carrier": "U☃", "delay": None if number % 3 else 2.5, "legs": [number]}
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), data)
    return out.getvalue()


def decoder_of(schema: dict[str, object]) -> EventDecoder:
    registry = MemoryRegistry()
    assert registry.register("flight.departed", json.dumps(schema)) == 1
    return EventDecoder(registry)


def batch(schema: dict[str, object], changed: dict[int, dict[str, object]]) -> pa.RecordBatch:
    """Return records of usual events, some of them changed in their headers, key or value."""
    rows = []
    for number in range(ROWS):
        change = dict(changed.get(number, {}))
        row: dict[str, object] = {
            "topic": TOPIC,
            "partition": 0,
            "offset": number,
            "timestamp": datetime(2013, 1, 1, tzinfo=UTC),
            "key": f"flight-☃{number}".encode(),
            "value": frame(1, body(schema, number)),
        }
        row |= {name: change.pop(name) for name in ("key", "value") if name in change}
        headers = {**usual(number), **change}
        gone = [name for name, value in headers.items() if value == "gone"]
        row["headers"] = [(name, value) for name, value in headers.items() if name not in gone]
        rows.append(row)
    return pa.RecordBatch.from_pylist(rows, RECORDS)


def decoded(decoder: Decoder, records: pa.RecordBatch) -> pa.Table:
    found = decode_batches(iter([records]), AnyTopic(decoder))
    return pa.Table.from_batches(found, DECODED).sort_by("offset").combine_chunks()


CHANGES = st.one_of(
    *(
        st.sampled_from([*values, "gone"]).map(lambda value, name=name: {name: value})
        for name, values in ODD.items()
    ),
    st.sampled_from([None, b"", b"flight-1"]).map(lambda key: {"key": key}),
    st.sampled_from(
        [None, b"", b"\0\0\0\0\1", b"\0\0\0\0\1\2", b"\1\0\0\0\1\2", frame(9, b"x")]
    ).map(lambda value: {"value": value}),
    st.just({"more": b"x"}),
)


@settings(max_examples=examples(60, matrix=1_500), deadline=None)
@given(
    st.sampled_from([SCHEMA, PLAIN]),
    st.dictionaries(st.integers(0, ROWS - 1), CHANGES, max_size=2),
    st.one_of(st.none(), CHANGES),
)
def test_p2_many_events_are_decoded_as_one_is(
    schema: dict[str, object],
    some: dict[int, dict[str, object]],
    all_: dict[str, object] | None,
) -> None:
    """What one record or all of them have that is odd is told in the same way."""
    changed = {n: {**(all_ or {}), **some.get(n, {})} for n in range(ROWS)}
    records = batch(schema, changed)
    decoder = decoder_of(schema)
    assert decoded(decoder, records).to_pylist() == decoded(OneByOne(decoder), records).to_pylist()


def test_usual_events_are_read_side_by_side_at_all() -> None:
    for schema in (SCHEMA, PLAIN):
        found = decoder_of(schema).many(TOPIC, batch(schema, {}))
        assert found is not None
        assert found.num_rows == ROWS
    odd = {n: {"subject": b"me", "metadata": b"", "tags": None} for n in range(ROWS)}
    assert decoder_of(PLAIN).many(TOPIC, batch(PLAIN, odd)) is not None
    assert decoder_of(PLAIN).many(TOPIC, batch(PLAIN, {3: {"position": b"0"}})) is None


def test_a_record_within_a_record_stops_no_batch() -> None:
    """A type that holds itself has no columns to be read side by side."""
    node = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    schema = {"type": "record", "name": "Data", "fields": [{"name": "first", "type": node}]}
    out = io.BytesIO()
    data = {"first": {"next": {"next": None}}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), data)
    records = batch(PLAIN, {n: {"value": frame(1, out.getvalue())} for n in range(ROWS)})
    found = decoded(decoder_of(schema), records)
    assert found["kind"].to_pylist() == ["event"] * ROWS
