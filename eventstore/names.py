"""What streams, categories, types and tags may be called."""

from __future__ import annotations

import re
import shlex
from uuid import UUID

from eventstore.lifecycle import CHANGE_TYPES
from kernel.errors import InvalidRequest, NotFound
from schemas.json_values import shown

CATEGORY = r"[a-z][a-z0-9_]{0,62}"
STREAM_MAX_CHARS = 255
TAG_MAX_CHARS = 255

TRACEPARENT = "traceparent"
CORRELATION_ID = "correlation_id"
CAUSATION_ID = "causation_id"
TRACING = frozenset({TRACEPARENT, CORRELATION_ID, CAUSATION_ID})
"""Keys of metadata that say how a request travelled: no part of what makes an event the same."""

_CATEGORY = re.compile(CATEGORY)
_PREFIX = re.compile(rf"{CATEGORY}(-[^\s\x00-\x1f\x7f/]*)?")
_STREAM = re.compile(rf"({CATEGORY})-[^\s\x00-\x1f\x7f/]+")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_QUERIED_TYPE = re.compile(rf"(?:{CATEGORY}\.)?{_TYPE.pattern}")
_TAG = re.compile(r"[^\s\x00-\x1f\x7f]+")
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_REMEMBERED = 65_536
_CATEGORIES: dict[str, str] = {}
_TYPES: set[str] = set()


def category_of(stream: str) -> str:
    """Return the category of a stream, the part before its first `-`.

    Raises `InvalidRequest` when the stream is not named `category-id`.
    """
    known = _CATEGORIES.get(stream)
    if known is not None:
        return known
    match = _STREAM.fullmatch(stream)
    if match is None or len(stream) > STREAM_MAX_CHARS:
        raise InvalidRequest(
            f"{shown(stream)} is not a stream name",
            remedy=f"Name streams category-id: the category matches {CATEGORY}, the id has no "
            f"blanks and no '/', the whole at most {STREAM_MAX_CHARS} characters. "
            "Example: order-1042",
        )
    if len(_CATEGORIES) >= _REMEMBERED:
        _CATEGORIES.clear()
    return _CATEGORIES.setdefault(stream, match.group(1))


def unknown_stream(stream: str) -> NotFound:
    """Return the error for a stream that nothing was ever appended to."""
    try:
        category_of(stream)
    except InvalidRequest as malformed:
        return NotFound(malformed.message, remedy=malformed.remedy, stream=stream)
    return NotFound(
        f"stream {stream} has no events",
        remedy="See what streams there are: penstock stream list. One begins with its first event: "
        f"penstock append {shlex.quote(stream)} TYPE DATA",
        stream=stream,
    )


def unknown_event(event_id: UUID) -> NotFound:
    """Return the error for an id that no event has."""
    return NotFound(
        f"no event has the id {event_id}",
        remedy="Ids of events are in what appending and reading them answer: penstock read --json",
        id=str(event_id),
    )


def check_type(name: object) -> str:
    """Return an event type's name, or raise `InvalidRequest`."""
    if isinstance(name, str) and (name in _TYPES or _TYPE.fullmatch(name)):
        if name in CHANGE_TYPES:
            raise reserved_type(name)
        if len(_TYPES) < _REMEMBERED:
            _TYPES.add(name)
        return name
    raise InvalidRequest(
        f"{shown(name)} is not an event type",
        remedy=f"A type matches {_TYPE.pattern}. Example: departed",
    )


def reserved_type(name: str) -> InvalidRequest:
    """Return the error for a type by which the store records what becomes of streams: with another
    schema than its own, no stream of the category could be deleted any more.
    """
    return InvalidRequest(
        f"the type {name} is the store's own, for changes of what streams show",
        remedy="Give the event another type.",
    )


def check_category(name: str) -> str:
    """Return a category's name, or raise `InvalidRequest`."""
    if _CATEGORY.fullmatch(name):
        return name
    raise InvalidRequest(
        f"{shown(name)} is not a category",
        remedy=f"A category matches {CATEGORY}: what stands before the first '-' of a stream's "
        "name. See which there are: penstock stream categories",
    )


def check_stream_prefix(prefix: str) -> str:
    """Return what names of streams can begin with, or raise `InvalidRequest`."""
    if len(prefix) <= STREAM_MAX_CHARS and _PREFIX.fullmatch(prefix):
        return prefix
    raise InvalidRequest(
        f"no stream's name begins with {shown(prefix)}",
        remedy=f"Streams are named category-id, and a category matches {CATEGORY}. "
        "Example: order-2026",
    )


def check_queried_type(name: str) -> str:
    """Return `type` or `category.type` as queries name it, or raise `InvalidRequest`."""
    if _QUERIED_TYPE.fullmatch(name):
        return name
    raise InvalidRequest(
        f"{shown(name)} is not an event type",
        remedy="Name a type as placed, or of one category as order.placed",
    )


def check_tag(tag: object) -> str:
    """Return a tag, or raise `InvalidRequest`."""
    if isinstance(tag, str) and len(tag) <= TAG_MAX_CHARS and _TAG.fullmatch(tag):
        return tag
    raise InvalidRequest(
        f"{shown(tag)} is not a tag",
        remedy=f"A tag is text without blanks, 1 to {TAG_MAX_CHARS} characters, as course:7",
    )


def subject_of(category: str, type_: str) -> str:
    """Return the registry subject of an event type."""
    return f"{category}.{type_}"


def behind_prefix(prefix: str) -> str | None:
    """Return the first text, by code points, behind all that begin with `prefix`; None: none is.

    >>> behind_prefix("order-1")
    'order-2'
    """
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= _LAST_CHARACTER:
            return prefix[: length - 1] + chr(code)
    return None
