"""Records of an events topic back to events, or to quarantine with the reason."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, datetime
from uuid import UUID

import fastavro
import pytest

from eventstore.decode import EventDecoder
from kernel.errors import Unavailable
from kernel.positions import KafkaOffset
from schemas.records import KafkaRecord, RecordedEvent, Rejected
from schemas.registry import MemoryRegistry
from schemas.wire import frame
from tests.support.lake.telling import BreakingRegistry

SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Data",
        "fields": [
            {"name": "carrier", "type": "string"},
            {"name": "delay", "type": ["null", "double"]},
        ],
    }
)

HEADERS = {
    "id": b"cf468130-867b-49fb-8318-a28dcf1834ab",
    "store_id": b"240eb7f4-c321-4490-8494-cfcbd8d45a87",
    "type": b"departed",
    "stream": "flight-☃".encode(),
    "category": b"flight",
    "version": b"3",
    "position": b"17",
    "schema_id": b"1",
    "data_format": b"0",
    "metadata": b'{"by": "me"}',
    "tags": b'["a:1"]',
    "occurred_at": b"2013-01-01T05:15:00.12Z",
    "recorded_at": b"2013-01-01T05:15:01+00:00",
}


def registry() -> MemoryRegistry:
    known = BreakingRegistry()
    assert known.register("flight.departed", SCHEMA) == 1
    return known


def body() -> bytes:
    out = io.BytesIO()
    data = {"carrier": "UA", "delay": 2.5}
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(SCHEMA)), data)
    return out.getvalue()


decode_event = EventDecoder(registry())


def record(
    headers: dict[str, bytes] | None = None,
    value: bytes | None = frame(1, body()),
    *,
    topic: str = "lake.events.flight",
    key: bytes | None = "flight-☃".encode(),
) -> KafkaRecord:
    return KafkaRecord(
        topic=topic,
        partition=0,
        offset=KafkaOffset(4),
        timestamp=datetime(2013, 1, 1, tzinfo=UTC),
        key=key,
        value=value,
        headers=HEADERS if headers is None else headers,
    )


def test_every_field_comes_back() -> None:
    assert decode_event(record()) == RecordedEvent(
        store_id="240eb7f4-c321-4490-8494-cfcbd8d45a87",
        position=17,
        id=UUID("cf468130-867b-49fb-8318-a28dcf1834ab"),
        stream="flight-☃",
        version=3,
        category="flight",
        type="departed",
        schema_id=1,
        data_format=0,
        data=frame(1, body()),
        subject=None,
        key_id=None,
        metadata={"by": "me"},
        tags=("a:1",),
        occurred_at=datetime(2013, 1, 1, 5, 15, 0, 120000, UTC),
        recorded_at=datetime(2013, 1, 1, 5, 15, 1, tzinfo=UTC),
    )


def test_columns_that_were_null() -> None:
    decoded = decode_event(record(HEADERS | {"subject": b"", "key_id": b"k"}))
    assert isinstance(decoded, RecordedEvent)
    assert (decoded.subject, decoded.key_id) == (None, "k")
    without = {name: HEADERS[name] for name in HEADERS if name not in ("metadata", "tags")}
    bare = decode_event(record(without))
    assert isinstance(bare, RecordedEvent)
    assert (bare.metadata, bare.tags) == ({}, ())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"id": b"7"}, "badly formed"),
        ({"position": b"0"}, "header position is 0, must be from 1 to"),
        ({"version": b"-1"}, "header version is -1"),
        ({"version": b"x"}, "invalid literal"),
        ({"schema_id": b"8"}, "header schema_id 8, but framed with 1"),
        ({"data_format": b"1"}, "data_format 1 is not known"),
        ({"occurred_at": b"2013-01-01T05:15:00"}, "no time zone"),
        ({"occurred_at": b"yesterday"}, "Invalid isoformat"),
        ({"metadata": b"[]"}, "not a JSON object"),
        ({"metadata": b"{"}, "JSONDecodeError"),
        ({"tags": b"[1]"}, "not a JSON array of texts"),
        ({"stream": b"\xff"}, "UnicodeDecodeError"),
        *[({name: b""}, f"header {name} is missing") for name in ("id", "stream", "position")],
    ],
)
def test_what_cannot_be_used_says_why(change: dict[str, bytes], reason: str) -> None:
    rejected = decode_event(record(HEADERS | change))
    assert isinstance(rejected, Rejected)
    assert rejected.stage == "decode"
    assert reason in rejected.reason
    assert rejected.record == record(HEADERS | change)


@pytest.mark.parametrize(
    ("value", "reason"),
    [(None, "null"), (b"", "too short"), (b"\x00\x00\x00", "too short"), (b"{json}", "byte 0")],
)
def test_values_without_the_framing(value: bytes | None, reason: str) -> None:
    rejected = decode_event(record(value=value))
    assert isinstance(rejected, Rejected)
    assert reason in rejected.reason


@pytest.mark.parametrize("garbage", [b"", b"\x7f", body()[:-1], b"\x04UA\x05", b"\xff" * 40])
def test_a_body_that_its_schema_cannot_read_is_no_event(garbage: bytes) -> None:
    rejected = decode_event(record(value=frame(1, garbage)))
    assert isinstance(rejected, Rejected)
    assert (rejected.stage, "do not fit their schema" in rejected.reason) == ("decode", True)


def test_a_schema_that_is_lost_or_cannot_be_asked_for() -> None:
    lost = record(HEADERS | {"schema_id": b"7"}, frame(7, body()))
    rejected = decode_event(lost)
    assert isinstance(rejected, Rejected)
    assert (rejected.stage, rejected.reason) == ("schema", "no schema with id 7")
    away = BreakingRegistry(broken={1: Unavailable("the registry is away")})
    with pytest.raises(Unavailable):
        EventDecoder(away)(record())


@pytest.mark.parametrize(
    ("strange", "reason"),
    [
        (record(topic="lake.events.gate"), "not that of category flight"),
        (record(key=b"flight-1"), "key is not its stream"),
        (record(key=None), "key is not its stream"),
    ],
)
def test_a_record_that_lies_where_its_event_does_not_belong(
    strange: KafkaRecord, reason: str
) -> None:
    rejected = decode_event(strange)
    assert isinstance(rejected, Rejected)
    assert reason in rejected.reason


def test_it_travels_to_other_processes() -> None:
    assert pickle.loads(pickle.dumps(decode_event))(record()) == decode_event(record())
