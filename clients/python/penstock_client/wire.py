"""Requests as JSON, answers from JSON. Fields that this version does not know are left alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import wraps
from itertools import islice
from typing import Any, TypeVar, cast
from urllib.parse import quote
from uuid import UUID

from penstock_client.errors import Refused, ServiceFault
from penstock_client.model import (
    ABSENT,
    CategorySummary,
    CommandAnswer,
    Condition,
    Entity,
    Event,
    EventPage,
    Expected,
    ExplainedEvent,
    Explanation,
    FieldChange,
    Imported,
    NewEvent,
    QueryItem,
    Schema,
    SchemaCheck,
    StreamAppend,
    StreamAppended,
    StreamMetadata,
    StreamPage,
    StreamSummary,
)

T = TypeVar("T")
IMPORTED_AT_ONCE = 500
_MAX_MAGNITUDE = 1_000


def dump(document: object) -> bytes:
    """Render a body. Raises `Refused` for values that JSON does not have.

    Times become UTC with microseconds; times, decimals and UUIDs are texts, which keep them as they
    are.
    """
    try:
        return json.dumps(
            document, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_text
        ).encode()
    except (TypeError, ValueError) as error:
        raise Refused(
            f"the request is not JSON: {error}",
            remedy="Send objects, lists, texts, finite numbers, booleans, None, date, datetime, "
            "Decimal and UUID.",
        ) from error


def load(body: bytes) -> Any:
    """Parse an answer. What is no JSON is no answer of the service."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise ServiceFault(
            f"the answer is not JSON: {error}", remedy="Is this the address of a Penstock service?"
        ) from error


def understood(reader: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
    """Turn the complaints of a reader about an answer's shape into `ServiceFault`."""

    @wraps(reader)
    def read(document: Mapping[str, Any]) -> T:
        try:
            return reader(document)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServiceFault(
                f"the answer is not understood: {type(error).__name__} {error}",
                remedy="Is this the address of a Penstock service, of a version that fits?",
            ) from error

    return read


def segment(text: object) -> str:
    """Return one segment of a path, quoted."""
    return quote(str(text), safe="")


def event_body(event: NewEvent) -> dict[str, Any]:
    """Return an event as the service takes it."""
    body: dict[str, Any] = {"id": str(event.id), "type": event.type, "data": event.data}
    if event.metadata:
        body["metadata"] = event.metadata
    if event.tags:
        body["tags"] = list(event.tags)
    if event.occurred_at is not None:
        body["occurred_at"] = moment_text(event.occurred_at)
    return body


def moment_text(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC with microseconds. Raises `Refused` without a time zone."""
    if moment.tzinfo is None:
        raise Refused(
            f"the time {moment} has no time zone", remedy="Use datetime.now(UTC) and the like."
        )
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _text(value: object) -> str:
    """Return what JSON has no value of its own for."""
    match value:
        case datetime():
            return moment_text(value)
        case date():
            return value.isoformat()
        case Decimal():
            if not value.is_finite() or abs(value.adjusted()) > _MAX_MAGNITUDE:
                raise Refused(f"{value} cannot be written", remedy="Send a finite, usual number.")
            return format(value, "f")
        case UUID():
            return str(value)
        case _:
            raise TypeError(f"{type(value).__name__} is not known")


def import_lines(events: Iterable[tuple[str, NewEvent]]) -> Iterator[bytes]:
    """Return the bodies of an import, so many events each."""
    rest = iter(events)
    while chunk := list(islice(rest, IMPORTED_AT_ONCE)):
        yield b"".join(dump({"stream": to, **event_body(event)}) + b"\n" for to, event in chunk)


def imported_of(document: Mapping[str, Any], before: Imported) -> Imported:
    """Add what one body of an import did to what those before it did."""
    return Imported(
        lines=before.lines + document["lines"],
        appended=before.appended + document["appended"],
        repeated=before.repeated + document["repeated"],
        last_position=max(before.last_position, document["last_position"]),
    )


def stream_body(
    events: NewEvent | Iterable[NewEvent], expected_version: Expected | None
) -> dict[str, Any]:
    """Return the body of an append to one stream."""
    several = (events,) if isinstance(events, NewEvent) else tuple(events)
    body: dict[str, Any] = {"events": [event_body(event) for event in several]}
    if expected_version is not None:
        body["expected_version"] = expected_version
    return body


def precondition(expected_version: int | str | None) -> dict[str, str]:
    """Return an expected version as headers."""
    match expected_version:
        case None:
            return {}
        case "no_stream":
            return {"if-none-match": "*"}
        case "stream_exists":
            return {"if-match": "*"}
        case _:
            return {"if-match": f'"{expected_version}"'}


def append_body(appends: Iterable[StreamAppend], condition: Condition | None) -> dict[str, Any]:
    """Return the body of an append to several streams."""
    body: dict[str, Any] = {
        "appends": [
            {"stream": each.stream, **stream_body(each.events, each.expected_version)}
            for each in appends
        ]
    }
    if condition is not None:
        body["condition"] = {"query": query_body(condition.query), "after": condition.after}
    return body


def query_body(items: Iterable[QueryItem]) -> list[dict[str, Any]]:
    """Return a query; what an item does not restrict is left out."""
    return [
        {name: list(value) for name, value in (("types", i.types), ("tags", i.tags)) if value}
        for i in items
    ]


@understood
def event_of(document: Mapping[str, Any]) -> Event:
    """Return a recorded event."""
    return Event(
        id=UUID(document["id"]),
        stream=document["stream"],
        category=document["category"],
        version=document["version"],
        position=document["position"],
        type=document["type"],
        data=document["data"],
        metadata=document["metadata"],
        tags=tuple(document["tags"]),
        occurred_at=datetime.fromisoformat(document["occurred_at"]),
        recorded_at=datetime.fromisoformat(document["recorded_at"]),
        unreadable=document.get("unreadable"),
    )


def reader_of(kind: type[T], **further: Callable[[Any], Any]) -> Callable[[Mapping[str, Any]], T]:
    """Return what makes a value of an answer's fields that are called as its own.

    `further` reads some of them, in place of what reads others of their name.
    """
    names = [each.name for each in fields(cast("Any", kind))]
    readers = {**_READERS, **further}

    @understood
    def read(document: Mapping[str, Any]) -> T:
        return kind(
            **{
                name: readers[name](document[name]) if name in readers else document[name]
                for name in names
            }
        )

    return read


_READERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("ack_by", "parked_at", "recorded_at"), datetime.fromisoformat),
    "events": lambda documents: tuple(map(event_of, documents)),
    "complaints": tuple,
}
appended_of = reader_of(StreamAppended)
stream_page_of = reader_of(StreamPage)
stream_summary_of = reader_of(StreamSummary)
category_summary_of = reader_of(CategorySummary)
stream_metadata_of = reader_of(StreamMetadata)
event_page_of = reader_of(EventPage)
schema_of = reader_of(Schema)
schema_check_of = reader_of(SchemaCheck)
command_answer_of = reader_of(CommandAnswer)
entity_of = reader_of(Entity)


@understood
def explanation_of(document: Mapping[str, Any]) -> Explanation:
    """Return how an entity came to its state."""
    return Explanation(
        entity=entity_of(document),
        before=document["before"],
        events=tuple(
            ExplainedEvent(
                event=event_of(each["event"]),
                changes=tuple(
                    FieldChange(
                        field=change["field"],
                        before=change.get("from", ABSENT),
                        after=change.get("to", ABSENT),
                    )
                    for change in each["changes"]
                ),
            )
            for each in document["events"]
        ),
        earlier=document["earlier"],
    )


def moment_params(version: int | None, at: datetime | None) -> dict[str, Any]:
    """Return the parameters that say which state of an entity is meant."""
    params: dict[str, Any] = {}
    if version is not None:
        params["version"] = version
    if at is not None:
        params["at"] = moment_text(at)
    return params
