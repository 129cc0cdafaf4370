"""What requests may hold: names, sizes, numbers. The fake refuses what the service refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from penstock_client.errors import Refused
from penstock_client.model import new_id

Document = dict[str, Any]
MAX_PAGE = 1_000
"""Events or streams in one page of JSON, at most."""
MAX_CATEGORIES = 500
_MAX_EVENTS = 1_000
_MAX_EVENT_BYTES = 256 * 1024
_MAX_DEPTH = 64
_MAX_TAGS = 16
_MAX_ITEMS = 16
_STREAM = re.compile(r"([a-z][a-z0-9_]{0,62})-[^\s\x00-\x1f\x7f/]+")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_QUERIED_TYPE = re.compile(rf"(?:[a-z][a-z0-9_]{{0,62}}\.)?{_TYPE.pattern}")
_TAG = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")
_WORDS = ("any", "no_stream", "stream_exists")
_EVENT_FIELDS = frozenset({"id", "type", "data", "metadata", "tags", "occurred_at"})


def category_of(stream: str) -> str:
    """Return the category of a stream, or raise `Refused`."""
    match = _STREAM.fullmatch(stream)
    if match is None or len(stream) > 255:
        raise Refused(f"{stream[:300]!r} is not a stream name", remedy="Name streams category-id.")
    return match.group(1)


def new_event(event: Any, place: str) -> Document:
    """Return an event of a request as it is kept, or raise `Refused`."""
    if not isinstance(event, dict):
        raise Refused(f"{place}: expected an object")
    unknown = event.keys() - _EVENT_FIELDS
    if unknown:
        raise Refused(f"{place}: unknown field {min(unknown)!r}")
    if not isinstance(event.get("type"), str) or not _TYPE.fullmatch(event["type"]):
        raise Refused(f"{event.get('type')!r} is not an event type")
    for name in ("data", "metadata"):
        if not isinstance(event.get(name, {}), dict) or "data" not in event:
            raise Refused(f"{place}.{name}: expected an object")
    if _has_nul(event.get("metadata", {})):
        raise Refused(f"{place}.metadata: the character U+0000 cannot be stored")
    size = len(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode())
    if size > _MAX_EVENT_BYTES:
        raise Refused(f"{place}: {size} bytes are too many", status=413, type="event-too-large")
    return {
        "id": _id_of(event.get("id"), place),
        "type": event["type"],
        "data": event["data"],
        "metadata": event.get("metadata", {}),
        "tags": _tags_of(event.get("tags") or [], place, _MAX_TAGS),
        "occurred_at": None if event.get("occurred_at") is None else _utc(event["occurred_at"]),
    }


def check_entries(entries: list[tuple[str, Any, list[Document]]]) -> None:
    """Refuse entries of (stream, expected version, events) that make no request together."""
    for stream, expected, events in entries:
        category_of(stream)
        if not events:
            raise Refused("$.events: expected a list with at least one event")
        if not (type(expected) is int and expected >= 0) and expected not in _WORDS:
            raise Refused(f"$.expected_version: {expected!r} is no version")
    if len({stream for stream, _, _ in entries}) < len(entries):
        raise Refused("$.appends: a stream is named twice")
    ids = [event["id"] for _, _, events in entries for event in events]
    if len(ids) > _MAX_EVENTS:
        raise Refused(f"$: {len(ids)} events in one request, at most {_MAX_EVENTS} are allowed")
    if len(set(ids)) < len(ids):
        raise Refused("$: an event id occurs twice in the request")


def check_depth(document: object) -> None:
    """Refuse a document whose lists and objects nest too deeply."""
    level = [document]
    for _ in range(_MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    if level:
        raise Refused(f"$: nested deeper than {_MAX_DEPTH} levels")


def items_of(query: Mapping[str, Any]) -> list[Document]:
    """Return the items of a query or condition, the short form for one item included."""
    items = query["query"] if "query" in query else [_short(query)]
    if not isinstance(items, list) or not 1 <= len(items) <= _MAX_ITEMS:
        raise Refused(f"$.query: expected a list of 1 to {_MAX_ITEMS} items")
    return [_item(item, f"$.query[{index}]") for index, item in enumerate(items)]


def matches(item: Document, event: Document) -> bool:
    """Return whether an event is one of the item's types and has all of its tags."""
    types, tags = item["types"], item["tags"]
    named = {event["type"], f"{event['category']}.{event['type']}"}
    return (not types or not named.isdisjoint(types)) and set(tags) <= set(event["tags"])


def number_of(document: Mapping[str, Any], name: str, default: int, *, least: int) -> int:
    """Return a whole number of a body, or raise `Refused`."""
    value = document.get(name, default)
    if type(value) is not int or value < least:
        raise Refused(f"$.{name}: {value!r} is no whole number from {least}")
    return value


def _short(query: Mapping[str, Any]) -> Document:
    return {name: query[name] for name in ("types", "tags") if name in query}


def _item(item: Any, place: str) -> Document:
    if not isinstance(item, dict) or not item.keys() <= {"types", "tags"}:
        raise Refused(f"{place}: expected an object with types and tags")
    types, tags = item.get("types") or [], item.get("tags") or []
    if not (types or tags):
        raise Refused("a query item has neither types nor tags")
    if len(types) > _MAX_ITEMS:
        raise Refused(f"{place}.types: at most {_MAX_ITEMS} are allowed")
    for name in types:
        if not isinstance(name, str) or not _QUERIED_TYPE.fullmatch(name):
            raise Refused(f"{name!r} is not an event type")
    return {"types": types, "tags": _tags_of(tags, place, _MAX_ITEMS)}


def _tags_of(tags: Any, place: str, at_most: int) -> list[str]:
    if not isinstance(tags, list) or len(tags) > at_most:
        raise Refused(f"{place}.tags: expected a list of at most {at_most} texts")
    for tag in tags:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise Refused(f"{tag!r} is not a tag")
    return list(dict.fromkeys(tags))


def _id_of(value: Any, place: str) -> str:
    try:
        return str(new_id() if value is None else UUID(value))
    except (ValueError, AttributeError, TypeError):
        raise Refused(f"{place}.id: {value!r} is no UUID") from None


def _utc(text: Any) -> str:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC).isoformat()
    except (ValueError, TypeError, OverflowError):
        pass
    raise Refused(f"$.occurred_at: {text!r} is no time with an offset")


def _has_nul(value: object) -> bool:
    match value:
        case str():
            return "\x00" in value
        case dict():
            return any(_has_nul(key) or _has_nul(item) for key, item in value.items())
        case list():
            return any(map(_has_nul, value))
        case _:
            return False
