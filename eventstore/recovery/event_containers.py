"""Events of a stream as records of an Avro object container, which other programs open, too.

Data and metadata are JSON text, as the service gives and takes them, so that one schema fits events
of all types. Blocks of some 16 kB are written and read one at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any, Final

import fastavro
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException

from kernel.errors import ContractViolation, InvalidRequest
from schemas import json_text
from schemas.wire import UNREADABLE

FORMAT: Final = "penstock-stream-1"
_TIME: Final = {"type": "long", "logicalType": "timestamp-micros"}
_NEEDED: Final = tuple({"name": name, "type": "string"} for name in ("stream", "id", "type"))
_TAGS: Final = {"type": "array", "items": "string"}
_NAMED: Final = {"type": "record", "name": "StreamEvent", "namespace": "penstock"}

WRITTEN: Final = fastavro.parse_schema(
    {
        **_NAMED,
        "fields": [
            *_NEEDED,
            {"name": "version", "type": "long", "doc": "its place in the stream"},
            {"name": "position", "type": "long", "doc": "its place in the store"},
            {"name": "schema_id", "type": "int", "doc": "what its data was written with"},
            {"name": "data", "type": "string", "doc": "JSON"},
            {"name": "metadata", "type": "string", "doc": "JSON"},
            {"name": "tags", "type": _TAGS},
            {"name": "occurred_at", "type": _TIME},
            {"name": "recorded_at", "type": _TIME},
        ],
    }
)
_READ: Final = fastavro.parse_schema(
    {
        **_NAMED,
        "fields": [
            *_NEEDED,
            {"name": "data", "type": "string"},
            {"name": "metadata", "type": "string", "default": "{}"},
            {"name": "tags", "type": _TAGS, "default": []},
            {"name": "occurred_at", "type": ["null", _TIME], "default": None},
        ],
    }
)
"""What a store takes of an event. It gives positions, versions and ids of schemas of its own."""
_UNREADABLE: Final = (
    *UNREADABLE,
    RuntimeError,  # Around a StopIteration, from within one of its generators.
    SchemaParseException,
    SchemaResolutionError,
    zlib.error,
)
_TAKE_AGAIN: Final = (
    "Export or copy it again; what was sent of it is there, and sending it again is safe."
)


def write_events(target: IO[bytes], stream: str, events: Iterable[Mapping[str, Any]]) -> int:
    """Write events as `GET /v1/streams/…` gives them; return how many.

    Raises `ContractViolation` for one whose data cannot be read: nobody could import it.
    """
    count = 0

    def records() -> Iterator[dict[str, object]]:
        nonlocal count
        for event in events:
            yield _record(event)
            count += 1

    about = {"penstock.format": FORMAT, "penstock.stream": stream}
    fastavro.writer(target, WRITTEN, records(), codec="deflate", metadata=about)
    return count


def read_events(source: IO[bytes], name: str) -> Iterator[dict[str, object]]:
    """Yield what a store takes of each event: stream, id, type, data and what else there is.

    Raises `InvalidRequest` for what is no container of events, `ContractViolation` for one that
    breaks off or is damaged, with the number of the record; those before it were yielded.
    """
    try:
        records = fastavro.reader(source, _READ)
    except _UNREADABLE as error:
        raise ContractViolation(
            f"{name}: its header cannot be read: {_told(error)}", remedy=_TAKE_AGAIN
        ) from error
    number = 0
    while True:
        number += 1
        try:
            record = next(records, None)
        except SchemaResolutionError as error:
            raise InvalidRequest(
                f"{name} has records that are no events: {_told(error)}",
                remedy="Each has at least stream, id, type and data (JSON), all of them strings, "
                "as penstock stream export --format avro writes them.",
            ) from error
        except _UNREADABLE as error:
            raise ContractViolation(
                f"{name} record {number} cannot be read: {_told(error)}", remedy=_TAKE_AGAIN
            ) from error
        if record is None:
            return
        assert isinstance(record, dict), "the schema is a record's"
        yield _event(record, f"{name} record {number}")


def _record(event: Mapping[str, Any]) -> dict[str, object]:
    if "unreadable" in event:
        raise ContractViolation(
            f"event {event['id']} of {event['stream']}, version {event['version']}, cannot be "
            f"exported: {event['unreadable']}",
            remedy="Mend that first; or write what can be shown of it: --format ndjson",
        )
    texts = {name: json_text.dump(event[name]).decode() for name in ("data", "metadata")}
    times = {name: datetime.fromisoformat(event[name]) for name in ("occurred_at", "recorded_at")}
    return {**event, **texts, **times}


def _event(record: Mapping[str, Any], place: str) -> dict[str, object]:
    event = {name: record[name] for name in ("stream", "id", "type", "tags")}
    for name in ("data", "metadata"):
        try:
            event[name] = json_text.parse_at(f"{place}, {name}", record[name])
        except ValueError as error:
            raise InvalidRequest(
                f"{place}: its {name} is not JSON: {error}", remedy="Write an object as JSON text."
            ) from None
    at = record["occurred_at"]
    if at is not None and not isinstance(at, datetime):
        raise InvalidRequest(
            f"{place}: its occurred_at is {at!r}, which says no time",
            remedy="Write it as a long with the logical type timestamp-micros, or leave it out.",
        )
    return event if at is None else event | {"occurred_at": at.isoformat()}


def _told(error: BaseException) -> str:
    return str(error) or ("it ends too soon" if isinstance(error, EOFError) else repr(error))
