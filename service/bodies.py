"""Request bodies of appends: JSON in, `NewEvent` out, every complaint with its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, cast
from uuid import UUID

import orjson

from eventstore.conditions import Condition
from eventstore.ids import new_id
from eventstore.metadata import check_metadata
from eventstore.names import category_of, check_tag, check_type
from eventstore.store import Expected
from kernel.clock import read_moment
from kernel.errors import InvalidRequest
from kernel.positions import Version
from schemas.json_text import parse
from schemas.json_values import shown, uuid_of
from schemas.records import NewEvent
from service.conditions import condition_of
from service.idempotency import event_id, key_metadata
from service.json_objects import known_object
from service.limits import BodyLimits, check_count, check_depth, check_sizes, too_deep
from service.problems import refusal

_EVENT_KEYS: Final = frozenset({"id", "type", "data", "metadata", "tags", "occurred_at"})
_BODY_KEYS: Final = frozenset({"expected_version", "events"})
_ENTRY_KEYS: Final = _BODY_KEYS | {"stream"}
_EXPECTED_WORDS: Final = ("any", "no_stream", "stream_exists")
_NUL: Final = b"\\u0000"
_EXAMPLE: Final = 'Example: {"events": [{"type": "placed", "data": {"total": 12}}]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBody:
    """Events for one stream. `expected` is None where the body does not say."""

    stream: str
    category: str
    expected: Expected | None
    events: tuple[NewEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendBody:
    """Entries for different streams, and the condition on which all of them depend."""

    entries: tuple[StreamBody, ...]
    condition: Condition | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """What counts for all events of a request: its limits, and what its headers say."""

    limits: BodyLimits = field(default_factory=BodyLimits)
    tracing: Mapping[str, object] = field(default_factory=dict)
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """A request while it is read. `metadata`: what each of its events gets on top of its own."""

    context: RequestContext
    metadata: Mapping[str, object]
    body_bytes: int
    nul: bool


def parse_json(body: bytes, depth: int) -> Any:
    """Parse JSON to exactly what it says (`schemas.json_text`), or refuse it: with 400 what is
    none, with 422 what nests deeper than `depth`.
    """
    try:
        document = parse(body)
    except RecursionError:
        raise too_deep(depth) from None
    except orjson.JSONDecodeError as error:
        raise refusal(
            400,
            "malformed-body",
            "The body is not JSON",
            f"{error.msg}: line {error.lineno} column {error.colno}" if body else "no body",
            "Send one JSON document in UTF-8. " + _EXAMPLE,
        ) from None
    check_depth(document, body, depth)
    return document


def stream_body(stream: str, body: bytes, context: RequestContext) -> StreamBody:
    """Parse the body of `POST /v1/streams/{stream}`."""
    document = parse_json(body, context.limits.json_depth)
    return _entry(stream, document, _BODY_KEYS, "$", _reading(body, [document], context))


def append_bodies(body: bytes, context: RequestContext) -> AppendBody:
    """Parse the body of `POST /v1/append`: entries for different streams, and a condition."""
    document = parse_json(body, context.limits.json_depth)
    document = known_object(document, "$", frozenset({"appends", "condition"}), _EXAMPLE)
    condition = document.get("condition")
    entries = document.get("appends")
    if not isinstance(entries, list) or not entries:
        raise InvalidRequest("$.appends: expected a list with at least one entry")
    reading = _reading(body, entries, context)
    bodies = []
    for index, entry in enumerate(entries):
        place = f"$.appends[{index}]"
        bodies.append(_entry(_stream_of(entry, place), entry, _ENTRY_KEYS, place, reading))
    if len({entry.stream for entry in bodies}) < len(bodies):
        raise InvalidRequest(
            "$.appends: a stream is named twice",
            remedy="Put all events of a stream into one entry, in order.",
        )
    _check_ids(bodies)
    return AppendBody(
        entries=tuple(bodies), condition=None if condition is None else condition_of(condition)
    )


def encode_body(body: bytes, context: RequestContext) -> StreamBody:
    """Parse the body of `POST /v1/encode`: an append to one stream, its name included."""
    document = parse_json(body, context.limits.json_depth)
    stream = _stream_of(document, "$")
    keys = frozenset({"stream", "events"})
    return _entry(stream, document, keys, "$", _reading(body, [document], context))


def imported_event(line: bytes, number: int, context: RequestContext) -> tuple[str, str, NewEvent]:
    """Parse a line of an import; return its stream, the stream's category and the event.

    An event without an id needs the request's idempotency key, which gives it one by the number
    of its line.
    """
    place = f"line {number}"
    document = parse_json(line, context.limits.json_depth)
    stream = _stream_of(document, place)
    event = {name: value for name, value in document.items() if name != "stream"}
    if event.get("id") is None and context.key is None:
        raise InvalidRequest(
            f"{place}: an event without an id",
            remedy="Give each event a UUID, or send an Idempotency-Key: what is sent twice must "
            "be recognised.",
        )
    check_sizes(len(line), [event], place, context.limits.event_bytes)
    id_ = None if context.key is None else event_id(context.key, stream, number)
    reading = _Reading(
        context=context, metadata=context.tracing, body_bytes=len(line), nul=_NUL in line
    )
    return stream, category_of(stream), _event(event, place, reading, id_)


def _stream_of(document: object, place: str) -> str:
    stream = document.get("stream") if isinstance(document, dict) else None
    if not isinstance(stream, str):
        raise InvalidRequest(
            f"{place}.stream: expected the name of a stream",
            remedy='Name it, as {"stream": "order-1042", …}; for all lines of a file: penstock '
            "stream import FILE --stream order-1042",
        )
    return stream


def _reading(body: bytes, entries: Sequence[object], context: RequestContext) -> _Reading:
    """Count the events of all entries, and derive what follows from the request as a whole."""
    lists = [entry.get("events") for entry in entries if isinstance(entry, dict)]
    events = sum(len(found) for found in lists if isinstance(found, list))
    check_count(events, context.limits.events)
    metadata = context.tracing
    if context.key is not None:
        metadata = {**metadata, **key_metadata(context.key, events)}
    return _Reading(context=context, metadata=metadata, body_bytes=len(body), nul=_NUL in body)


def _entry(
    stream: str, document: Any, keys: frozenset[str], place: str, reading: _Reading
) -> StreamBody:
    category = category_of(stream)
    document = known_object(document, place, keys, _EXAMPLE)
    events = document.get("events")
    if not isinstance(events, list) or not events:
        raise InvalidRequest(
            f"{place}.events: expected a list with at least one event", remedy=_EXAMPLE
        )
    check_sizes(reading.body_bytes, events, place, reading.context.limits.event_bytes)
    key = reading.context.key
    parsed = StreamBody(
        stream=stream,
        category=category,
        expected=_expected(document.get("expected_version"), place),
        events=tuple(
            [
                _event(
                    event,
                    f"{place}.events[{index}]",
                    reading,
                    None if key is None else event_id(key, stream, index),
                )
                for index, event in enumerate(events)
            ]
        ),
    )
    if len(events) > 1:
        _check_ids([parsed])
    return parsed


def _expected(value: object, place: str) -> Expected | None:
    if value is None:
        return None
    if type(value) is int and value >= 0:
        return Version(value)
    if value in _EXPECTED_WORDS:
        return cast(Expected, value)
    raise InvalidRequest(
        f"{place}.expected_version: {shown(value)} is no version",
        remedy=f"Send a whole number from 0, or one of: {', '.join(_EXPECTED_WORDS)}",
    )


def _event(event: Any, place: str, reading: _Reading, id_: UUID | None) -> NewEvent:
    if not isinstance(event, dict) or not event.keys() <= _EVENT_KEYS:
        event = known_object(event, place, _EVENT_KEYS, _EXAMPLE)
    data = event.get("data")
    metadata = event.get("metadata")
    tags = event.get("tags")
    at = event.get("occurred_at")
    if not isinstance(data, dict):
        raise InvalidRequest(f"{place}.data: expected an object", remedy=_EXAMPLE)
    if metadata is not None:
        _check_metadata(metadata, place, nul=reading.nul)
    if reading.metadata:
        metadata = {**reading.metadata, **(metadata or {})}
    return NewEvent(
        id=_id(event.get("id"), place, id_),
        type=check_type(event.get("type")),
        data=data,
        metadata=metadata or {},
        tags=() if tags is None else _tags(tags, place, reading.context.limits.tags),
        occurred_at=None if at is None else moment_of(at, f"{place}.occurred_at"),
    )


def _id(value: object, place: str, derived: UUID | None) -> UUID:
    if value is None:
        return derived or new_id()
    try:
        return uuid_of(cast(str, value))
    except (ValueError, AttributeError, TypeError):
        raise InvalidRequest(
            f"{place}.id: {shown(value)} is no UUID",
            remedy="Send a UUID of your own per event; it makes a retry safe.",
        ) from None


def moment_of(value: object, place: str) -> datetime:
    """Read a time with an offset, as UTC. Raises `InvalidRequest` that names the place."""
    try:
        moment = read_moment(value) if isinstance(value, str) else None
        if moment is not None and moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(
        f"{place}: {shown(value)} is no time with an offset",
        remedy="Send ISO 8601 with an offset, as 2013-01-01T05:15:00Z",
    )


def _tags(tags: object, place: str, at_most: int) -> tuple[str, ...]:
    if not isinstance(tags, list):
        raise InvalidRequest(f'{place}.tags: expected a list of texts, as ["course:7"]')
    if len(tags) > at_most:
        raise InvalidRequest(
            f"{place}.tags: {len(tags)} tags, at most {at_most} are allowed",
            remedy="Tag with what decisions and queries ask for; the rest belongs in data.",
        )
    return tuple(dict.fromkeys(check_tag(tag) for tag in tags))


def _check_metadata(metadata: object, place: str, *, nul: bool) -> None:
    if not isinstance(metadata, dict):
        raise InvalidRequest(f"{place}.metadata: expected an object")
    check_metadata(metadata, f"{place}.metadata", nul=nul)


def _check_ids(bodies: list[StreamBody]) -> None:
    ids = [event.id for body in bodies for event in body.events]
    if len(set(ids)) < len(ids):
        raise InvalidRequest(
            "$: an event id occurs twice in the request",
            remedy="Give every event an id of its own.",
        )
