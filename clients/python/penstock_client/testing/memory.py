"""The store itself: streams, positions, ids, conditions. Documents are what the service shows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock_client.errors import (
    BeyondHead,
    ConditionFailed,
    IdReused,
    NotFound,
    Refused,
    StreamGone,
    VersionConflict,
)
from penstock_client.testing.bodies import (
    MAX_CATEGORIES,
    Document,
    category_of,
    check_depth,
    check_entries,
    items_of,
    matches,
    new_event,
    number_of,
)

METADATA_SUFFIX = "$metadata"
"""What a stream's name and this name: the stream of what was done to it."""
_OWN_SCHEMA = 0
_TRACING = frozenset({"traceparent", "correlation_id", "causation_id"})
"""Keys of metadata that say how a request travelled: a repetition may have others."""


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
    stream: str | None = None
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
            and self.type in (None, event["type"], f"{event['category']}.{event['type']}")
            and self.stream in (None, event["stream"])
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
            (stream, expected, [new_event(e, f"$.events[{i}]") for i, e in enumerate(events)])
            for stream, expected, events in entries
        ]
        check_depth([events for _, _, events in entries])
        check_entries(prepared)
        items = None if condition is None else items_of(condition)
        with self.lock:
            schema_ids = [
                [self._check(category_of(s), e["type"], e["data"], i) for i, e in enumerate(es)]
                for s, _, es in prepared
            ]
            repeated = self._repeated(prepared)
            if repeated is not None:
                return repeated, True
            if items is not None:
                self._check_condition(items, number_of(condition, "after", 0, least=0))
            for stream, expected, _ in prepared:
                if stream.endswith(METADATA_SUFFIX):
                    raise Refused(f"stream {stream} records the life of another stream")
                self._check_expected(stream, expected)
            self._check_categories({category_of(stream) for stream, _, _ in prepared})
            answers = [
                self._placed(stream, events, ids)
                for (stream, _, events), ids in zip(prepared, schema_ids, strict=True)
            ]
        self.wake()
        return answers, False

    def check(self, stream: str, event: Document) -> None:
        """Refuse an event that no append to the stream could have."""
        with self.lock:
            self._check(category_of(stream), event["type"], event["data"], 0)

    def record(self, stream: str, type_: str, data: Document) -> int:
        """Append an event of the store's own and return its position."""
        event = new_event({"type": type_, "data": data}, "$.events[0]")
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

    def _repeated(
        self, entries: Sequence[tuple[str, Any, Sequence[Document]]]
    ) -> list[Document] | None:
        asked = [(stream, event) for stream, _, events in entries for event in events]
        known = [self._ids[event["id"]] for _, event in asked if event["id"] in self._ids]
        if not known:
            return None
        if len(known) < len(asked):
            raise _reused(known[0])
        places = iter(known)
        answers = []
        for stream, _, events in entries:
            found = [next(places) for _ in events]
            for index, (event, stored) in enumerate(zip(events, found, strict=True)):
                beside = stored["position"] == found[0]["position"] + index
                if not (beside and _same(stream, event, stored)):
                    raise _reused(stored)
            answers.append(_answer(stream, found))
        return answers

    def _check_categories(self, asked: set[str]) -> None:
        there = {category_of(stream) for stream in self._heads}
        if asked - there and len(there | asked) > MAX_CATEGORIES:
            raise Refused(f"at most {MAX_CATEGORIES} categories are allowed")

    def _check_condition(self, items: list[Document], after: int) -> None:
        if after > self.head:
            raise BeyondHead(
                f"the condition's after is {after}, beyond the head {self.head}",
                remedy="Query again.",
                after=after,
                head=self.head,
            )
        for event in reversed(list(self.after(after))):
            if any(matches(item, event) for item in items):
                raise ConditionFailed(
                    f"the event at position {event['position']} matches the condition",
                    remedy="Query again and decide on what is there now.",
                    position=event["position"],
                    after=after,
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
        recorded_at = self._now().astimezone(UTC).isoformat()
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


def _same(stream: str, event: Document, stored: Document) -> bool:
    return (
        stored["stream"] == stream
        and event["occurred_at"] in (None, stored["occurred_at"])
        and _untraced(event["metadata"]) == _untraced(stored["metadata"])
        and all(stored[name] == event[name] for name in ("type", "data", "tags"))
    )


def _untraced(metadata: Document) -> Document:
    return {key: value for key, value in metadata.items() if key not in _TRACING}


def _reused(stored: Document) -> IdReused:
    return IdReused(
        f"event id {stored['id']} is used already",
        remedy="Give every new event an id of its own.",
        id=stored["id"],
        position=stored["position"],
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
