"""The store itself: streams, positions, ids, conditions. Documents are what the service shows."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from penstock_client.errors import (
    BeyondHead,
    ConditionFailed,
    IdReused,
    NotFound,
    Refused,
    StreamGone,
    VersionConflict,
)
from penstock_client.model import new_id

Document = dict[str, Any]
_STREAM = re.compile(r"([a-z][a-z0-9_]{0,62})-[^\s\x00-\x1f\x7f/]+")
_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_TAG = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")
METADATA_SUFFIX = "$metadata"
"""What a stream's name and this name: the stream of what was done to it."""
_OWN_SCHEMA = 0
_WORDS = ("any", "no_stream", "stream_exists")
_EVENT_FIELDS = frozenset({"id", "type", "data", "metadata", "tags", "occurred_at"})


@dataclass(slots=True, kw_only=True)
class Lifecycle:
    """What hides events of a stream from its readers."""

    deleted: bool = False
    tombstoned: bool = False
    truncate_before: int = 0
    max_count: int | None = None
    archived_up_to: int = 0
    max_age_s: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events of the whole store are wanted; None lets everything pass."""

    category: str | None = None
    type: str | None = None
    stream_prefix: str | None = None
    tag: str | None = None

    @property
    def everything(self) -> bool:
        """Whether no event is left out."""
        return self == Wanted()

    def passes(self, event: Document) -> bool:
        """Return whether an event is wanted."""
        return (
            self.category in (None, event["category"])
            and self.type in (None, event["type"])
            and (self.stream_prefix is None or event["stream"].startswith(self.stream_prefix))
            and (self.tag is None or self.tag in event["tags"])
        )


Check = Callable[[str, str, Mapping[str, Any], int], int]
"""(category, type, data, index) -> id of the schema that the data fits."""


class MemoryStore:
    """Positions are 1, 2, 3 …, versions 0, 1, 2 … in each stream. Safe to use from any thread."""

    def __init__(self, check: Check, now: Callable[[], datetime]) -> None:
        self.lock = threading.RLock()
        self.events: list[Document] = []
        self.lifecycle: dict[str, Lifecycle] = {}
        self._heads: dict[str, int] = {}
        self._ids: dict[str, Document] = {}
        self._check = check
        self._now = now
        self._listeners: list[Callable[[], None]] = []

    @property
    def head(self) -> int:
        """The last position."""
        return len(self.events)

    def version(self, stream: str) -> int | None:
        """Return the version of a stream, None when nothing was ever appended."""
        return self._heads.get(stream)

    def append(
        self, entries: Sequence[tuple[str, Any, Sequence[Document]]], condition: Any = None
    ) -> tuple[list[Document], bool]:
        """Append entries of (stream, expected version, events): all or nothing.

        Return the answers, and whether the events were there already.
        """
        prepared = [
            (stream, expected, [self._prepared(e, i) for i, e in enumerate(events)])
            for stream, expected, events in entries
        ]
        self._check_request(prepared)
        with self.lock:
            repeated = self._repeated(prepared)
            if repeated is not None:
                return repeated, True
            if condition is not None:
                self._check_condition(condition)
            for stream, expected, _ in prepared:
                self._check_expected(stream, expected)
            schema_ids = [
                [self._check(category_of(s), e["type"], e["data"], i) for i, e in enumerate(es)]
                for s, _, es in prepared
            ]
            answers = [
                self._placed(stream, events, ids)
                for (stream, _, events), ids in zip(prepared, schema_ids, strict=True)
            ]
        self.wake()
        return answers, False

    def record(self, stream: str, type_: str, data: Document) -> int:
        """Append an event of the store's own and return its position."""
        event = self._prepared({"type": type_, "data": data}, 0)
        with self.lock:
            position: int = self._placed(stream, [event], [_OWN_SCHEMA])["last_position"]
        self.wake()
        return position

    def visible(self, stream: str) -> list[Document]:
        """Return the events of a stream that its readers see, oldest first."""
        with self.lock:
            if stream not in self._heads:
                raise NotFound(f"stream {stream} does not exist", remedy="Check the name.")
            state = self.lifecycle.get(stream, Lifecycle())
            if state.tombstoned:
                raise StreamGone(f"stream {stream} was deleted for good", remedy="Use another.")
            if state.deleted:
                raise NotFound(f"stream {stream} was deleted", remedy="Append to begin again.")
            events = [e for e in self.events if e["stream"] == stream]
            events = [e for e in events if e["version"] >= state.truncate_before]
            if state.max_age_s is not None:
                oldest = self._now().timestamp() - state.max_age_s
                events = [
                    e
                    for e in events
                    if datetime.fromisoformat(e["recorded_at"]).timestamp() >= oldest
                ]
            return events if state.max_count is None else events[-state.max_count :]

    def event(self, event_id: str) -> Document:
        """Return one event, or raise `NotFound`."""
        found = self._ids.get(event_id)
        if found is None:
            raise NotFound(f"event {event_id} does not exist", remedy="Check the id.")
        return found

    def after(self, position: int) -> Iterator[Document]:
        """Yield the events behind a position, as many as there are now."""
        return iter(self.events[position:])

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever something happened; the returned function ends that."""
        with self.lock:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def wake(self) -> None:
        """Call all listeners."""
        for listener in list(self._listeners):
            listener()

    def _prepared(self, event: Any, index: int) -> Document:
        place = f"$.events[{index}]"
        if not isinstance(event, dict):
            raise Refused(f"{place}: expected an object")
        unknown = event.keys() - _EVENT_FIELDS
        if unknown:
            raise Refused(f"{place}: unknown field {min(unknown)!r}")
        if not isinstance(event.get("type"), str) or not _TYPE.fullmatch(event["type"]):
            raise Refused(f"{event.get('type')!r} is not an event type")
        if not isinstance(event.get("data"), dict):
            raise Refused(f"{place}.data: expected an object")
        tags = event.get("tags") or []
        for tag in tags:
            if not isinstance(tag, str) or not _TAG.fullmatch(tag):
                raise Refused(f"{tag!r} is not a tag")
        return {
            "id": str(UUID(event["id"])) if event.get("id") is not None else str(new_id()),
            "type": event["type"],
            "data": event["data"],
            "metadata": event.get("metadata") or {},
            "tags": list(dict.fromkeys(tags)),
            "occurred_at": _utc(event.get("occurred_at")),
        }

    def _check_request(self, entries: Sequence[tuple[str, Any, Sequence[Document]]]) -> None:
        for stream, expected, events in entries:
            category_of(stream)
            if stream.endswith(METADATA_SUFFIX):
                raise Refused(f"stream {stream} records the life of another stream")
            if not events:
                raise Refused("$.events: expected a list with at least one event")
            if not (type(expected) is int and expected >= 0) and expected not in _WORDS:
                raise Refused(f"$.expected_version: {expected!r} is no version")
        if len({stream for stream, _, _ in entries}) < len(entries):
            raise Refused("$.appends: a stream is named twice")
        ids = [event["id"] for _, _, events in entries for event in events]
        if len(set(ids)) < len(ids):
            raise Refused("$: an event id occurs twice in the request")

    def _repeated(
        self, entries: Sequence[tuple[str, Any, Sequence[Document]]]
    ) -> list[Document] | None:
        asked = [(stream, event) for stream, _, events in entries for event in events]
        known = [self._ids[event["id"]] for _, event in asked if event["id"] in self._ids]
        if not known:
            return None
        same = len(known) == len(asked) and all(
            _same(stream, event, stored)
            for (stream, event), stored in zip(asked, known, strict=True)
        )
        if not same:
            raise IdReused(
                f"event id {known[0]['id']} is used already",
                remedy="Give every new event an id of its own.",
                id=known[0]["id"],
                position=known[0]["position"],
            )
        places = iter(known)
        return [_answer(stream, [next(places) for _ in events]) for stream, _, events in entries]

    def _check_condition(self, condition: Any) -> None:
        after = condition.get("after", 0)
        if after > self.head:
            raise BeyondHead(
                f"the condition's after is {after}, beyond the head {self.head}",
                remedy="Query again.",
                head=self.head,
            )
        for event in reversed(list(self.after(after))):
            if any(matches(item, event) for item in items_of(condition)):
                raise ConditionFailed(
                    f"the event at position {event['position']} matches the condition",
                    remedy="Query again and decide on what is there now.",
                    position=event["position"],
                )

    def _check_expected(self, stream: str, expected: Any) -> None:
        state = self.lifecycle.get(stream, Lifecycle())
        if state.tombstoned:
            raise StreamGone(f"stream {stream} was deleted for good", remedy="Use another.")
        actual = self._heads.get(stream)
        met = {
            "any": True,
            "no_stream": actual is None or state.deleted,
            "stream_exists": actual is not None and not state.deleted,
        }.get(expected, expected == actual)
        if not met:
            raise VersionConflict(
                f"stream {stream} is not at {expected}",
                remedy="Read the stream and decide again.",
                stream=stream,
                expected=expected,
                actual=actual,
            )

    def _placed(self, stream: str, events: list[Document], schema_ids: list[int]) -> Document:
        recorded_at = _utc(self._now().isoformat())
        placed = []
        for event, schema_id in zip(events, schema_ids, strict=True):
            version = self._heads.get(stream, -1) + 1
            document = {
                "id": event["id"],
                "stream": stream,
                "category": category_of(stream),
                "version": version,
                "position": self.head + 1,
                "type": event["type"],
                "schema_id": schema_id,
                "data": event["data"],
                "metadata": event["metadata"],
                "tags": event["tags"],
                "occurred_at": event["occurred_at"] or recorded_at,
                "recorded_at": recorded_at,
            }
            self._heads[stream] = version
            self._ids[event["id"]] = document
            self.events.append(document)
            placed.append(document)
        state = self.lifecycle.get(stream)
        if state is not None and state.deleted:
            state.deleted = False
        return _answer(stream, placed)


def category_of(stream: str) -> str:
    """Return the category of a stream, or raise `Refused`."""
    match = _STREAM.fullmatch(stream)
    if match is None or len(stream) > 255:
        raise Refused(f"{stream[:300]!r} is not a stream name", remedy="Name streams category-id.")
    return match.group(1)


def items_of(query: Any) -> list[Document]:
    """Return the items of a query or condition, the short form for one item included."""
    if "query" in query:
        return list(query["query"])
    return [{name: query[name] for name in ("types", "tags") if name in query}]


def matches(item: Document, event: Document) -> bool:
    """Return whether an event is one of the item's types and has all of its tags."""
    types, tags = item.get("types", ()), item.get("tags", ())
    named = {event["type"], f"{event['category']}.{event['type']}"}
    return (not types or not named.isdisjoint(types)) and set(tags) <= set(event["tags"])


def _same(stream: str, event: Document, stored: Document) -> bool:
    return (
        stored["stream"] == stream
        and event["occurred_at"] in (None, stored["occurred_at"])
        and all(stored[name] == event[name] for name in ("type", "data", "metadata", "tags"))
    )


def _answer(stream: str, placed: list[Document]) -> Document:
    first, last = placed[0], placed[-1]
    return {
        "stream": stream,
        "first_version": first["version"],
        "last_version": last["version"],
        "first_position": first["position"],
        "last_position": last["position"],
    }


def _utc(text: str | None) -> str | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise Refused(f"$.occurred_at: {text!r} is no time with an offset")
    return moment.astimezone(UTC).isoformat()
