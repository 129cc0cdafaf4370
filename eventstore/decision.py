"""What becomes of each append of a group: the rules, without any I/O.

    (requests in queue order, what is stored) -> (answers, events with their places)

Both stores use it, under their own lock; a request sees the effects of those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import assert_never
from uuid import UUID

from eventstore.conditions import Condition
from eventstore.lifecycle import SHOWS_ALL, PolicyChange, StreamPolicy, is_metadata
from eventstore.names import TRACING
from eventstore.recent_events import RecentEvents
from eventstore.store import (
    Appended,
    AppendRequest,
    EncodedEvent,
    Expected,
    StreamAppend,
    StreamAppended,
)
from kernel.errors import (
    BeyondHead,
    ConditionFailed,
    IdReused,
    InvalidRequest,
    PenstockError,
    StreamGone,
    VersionConflict,
)
from kernel.positions import Position, Version

MAX_CATEGORIES = 500
Outcome = Appended | PenstockError
Matched = int | PenstockError | None
"""Position of the newest committed event that a condition matches, or why that cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An event with its place in stream and store."""

    event: EncodedEvent
    stream: str
    category: str
    version: int
    position: int
    occurred_at: datetime
    recorded_at: datetime


SameData = Callable[[EncodedEvent, EncodedEvent], bool]
"""Whether two events' data say the same, perhaps in different versions of their schema."""


def same_bytes(first: EncodedEvent, second: EncodedEvent) -> bool:
    """Compare data as bytes."""
    return first.data == second.data


@dataclass(slots=True, kw_only=True)
class StoreState:
    """What the store holds that the requests of a group touch; updated as they are decided.

    `heads`: last version of each touched stream that exists. `known`: stored events by those ids
    of the group that are in the store. `matched`: for each condition of the group what it matches
    in the store as it was before the group. `policies`: those of touched streams that are closed,
    and all that the group changes, which `changed` names. `unclear`: those of `known` whose content
    cannot be told just now, and why.
    """

    position: int
    recorded_at: datetime
    heads: dict[str, int]
    known: dict[UUID, Placed]
    categories: set[str]
    matched: Mapping[Condition, Matched] = field(default_factory=dict)
    placed: list[Placed] = field(default_factory=list)
    recent: RecentEvents = field(default_factory=RecentEvents)
    policies: dict[str, StreamPolicy] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    unclear: Mapping[UUID, PenstockError] = field(default_factory=dict)


def decide_group(
    requests: Sequence[AppendRequest],
    state: StoreState,
    *,
    same_data: SameData = same_bytes,
    max_categories: int = MAX_CATEGORIES,
) -> list[Outcome]:
    """Answer each request in order; accepted events are added to `state.placed`.

    A refused request changes nothing, and never the answer of another.
    """
    outcomes: list[Outcome] = []
    for request in requests:
        try:
            repeated = _repeated(request, state, same_data)
            if repeated is None:
                _check(request, state, max_categories)
                outcomes.append(_place(request, state))
            else:
                outcomes.append(repeated)
        except PenstockError as refusal:
            outcomes.append(refusal)
    return outcomes


def _repeated(request: AppendRequest, state: StoreState, same_data: SameData) -> Appended | None:
    """Return the first answer when every event is stored already, None when none is.

    Raises `IdReused` for anything between, and for ids whose stored content is another.
    """
    events = [event for append in request.appends for event in append.events]
    stored = [state.known[event.id] for event in events if event.id in state.known]
    if not stored:
        return None
    for event in events:
        if event.id in state.unclear:
            raise state.unclear[event.id]
    if len(stored) != len(events):
        raise _reused(stored[0], "other events of this request are new")
    places = iter(stored)
    answers = []
    for append in request.appends:
        found = [next(places) for _ in append.events]
        for index, (event, place) in enumerate(zip(append.events, found, strict=True)):
            if place.stream != append.stream:
                raise _reused(place, f"it is in stream {place.stream}")
            if place.position != found[0].position + index:
                raise _reused(place, "it was appended in another order or request")
            if not _same(event, place, same_data):
                raise _reused(place, "its content is another")
        answers.append(_answer(append.stream, found[0], found[-1]))
    return Appended(appends=tuple(answers), repeated=True)


def _same(event: EncodedEvent, place: Placed, same_data: SameData) -> bool:
    """Compare content. A time that the store filled in is not the caller's to repeat, and each
    try of a request has a trace of its own.
    """
    stored = place.event
    return (
        event.type == stored.type
        and event.tags == stored.tags
        and (
            event.metadata == stored.metadata
            or _untraced(event.metadata) == _untraced(stored.metadata)
        )
        and event.occurred_at in (None, place.occurred_at)
        and (event.data == stored.data or same_data(event, stored))
    )


def _untraced(metadata: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in metadata.items() if key not in TRACING}


def _reused(place: Placed, why: str) -> IdReused:
    return IdReused(
        f"event id {place.event.id} is used already at position {place.position}: {why}",
        id=str(place.event.id),
        position=place.position,
    )


def _check(request: AppendRequest, state: StoreState, max_categories: int) -> None:
    if request.condition is not None:
        _check_condition(request.condition, state)
    if request.change is not None:
        _check_change(request.change, state)
    for append in request.appends:
        if request.change is None and is_metadata(append.stream):
            raise InvalidRequest(
                f"stream {append.stream} records the life of another stream",
                remedy="Change that stream's metadata, or append to it.",
            )
        actual = state.heads.get(append.stream)
        policy = _policy(append.stream, state) if state.policies else SHOWS_ALL
        check_expected(append.stream, append.expected, actual, deleted=policy.deleted)
    new = {append.category for append in request.appends} - state.categories
    if new and len(state.categories) + len(new) > max_categories:
        raise InvalidRequest(
            f"category {min(new)} would be number {len(state.categories) + 1}, "
            f"at most {max_categories} are allowed",
            remedy="Each category is a Kafka topic: put the entity into the part behind the "
            "first '-' of the stream's name, not into the category.",
        )


def _check_condition(condition: Condition, state: StoreState) -> None:
    after = condition.after
    if after > state.position:
        raise BeyondHead(
            f"the condition's after is {after}, beyond the head {state.position}",
            after=after,
            head=state.position,
        )
    matched = state.matched[condition]
    if isinstance(matched, PenstockError):
        raise matched
    for place in state.placed[state.recent.count :]:
        event = place.event
        state.recent.add(place.position, place.category, event.type, event.tags)
    matched = state.recent.newest(condition.query, after) or matched
    if matched is not None:
        raise ConditionFailed(
            f"the event at position {matched}, behind {after}, matches the condition",
            position=matched,
            after=after,
        )


def _check_change(change: PolicyChange, state: StoreState) -> None:
    present = state.policies.get(change.stream, SHOWS_ALL)
    if replace(change.policy, archived_up_to=present.archived_up_to) != present:
        _policy(change.stream, state)  # Of what is gone for good only the place may change.
    check_expected(change.stream, change.version, state.heads.get(change.stream))


def _policy(stream: str, state: StoreState) -> StreamPolicy:
    """Return a stream's policy as far as it matters to an append. Raises `StreamGone`."""
    policy = state.policies.get(stream, SHOWS_ALL)
    if policy.tombstoned:
        raise StreamGone(f"stream {stream} was deleted for good", stream=stream)
    return policy


def check_expected(
    stream: str, expected: Expected, actual: int | None, *, deleted: bool = False
) -> None:
    """Raise `VersionConflict` when a stream is not as expected. `actual` None: it has no events."""
    if _meets(expected, actual, deleted=deleted):
        return
    found = "does not exist" if actual is None else f"is at version {actual}"
    raise VersionConflict(
        f"stream {stream} {found}, expected {expected}",
        stream=stream,
        expected=expected,
        actual=actual,
    )


def _meets(expected: Expected, actual: int | None, *, deleted: bool) -> bool:
    """Versions go on after a deletion, but there is no stream until somebody appends."""
    match expected:
        case "any":
            return True
        case "no_stream":
            return actual is None or deleted
        case "stream_exists":
            return actual is not None and not deleted
        case int():
            return actual == expected
        case _:
            assert_never(expected)


def _place(request: AppendRequest, state: StoreState) -> Appended:
    answers = []
    for append in request.appends:
        placed = _place_stream(append, state)
        answers.append(_answer(append.stream, placed[0], placed[-1]))
        state.placed.extend(placed)
        if state.policies and (policy := _policy(append.stream, state)).deleted:
            _change(append.stream, replace(policy, deleted=False), state)
    if request.change is not None:
        _change(request.change.stream, request.change.policy, state)
    return Appended(appends=tuple(answers), repeated=False)


def _change(stream: str, policy: StreamPolicy, state: StoreState) -> None:
    state.policies[stream] = policy
    state.changed.add(stream)


def _place_stream(append: StreamAppend, state: StoreState) -> list[Placed]:
    head = state.heads.get(append.stream, -1)
    placed = []
    for index, event in enumerate(append.events, start=1):
        place = Placed(
            event=event,
            stream=append.stream,
            category=append.category,
            version=head + index,
            position=state.position + index,
            occurred_at=event.occurred_at or state.recorded_at,
            recorded_at=state.recorded_at,
        )
        state.known[event.id] = place
        placed.append(place)
    state.heads[append.stream] = head + len(placed)
    state.position += len(placed)
    state.categories.add(append.category)
    return placed


def _answer(stream: str, first: Placed, last: Placed) -> StreamAppended:
    return StreamAppended(
        stream=stream,
        first_version=Version(first.version),
        last_version=Version(last.version),
        first_position=Position(first.position),
        last_position=Position(last.position),
    )


def ids_of(requests: Sequence[AppendRequest]) -> list[UUID]:
    """Return all event ids of a group, in order."""
    return [event.id for append in _appends(requests) for event in append.events]


def conditions_of(requests: Sequence[AppendRequest]) -> tuple[Condition, ...]:
    """Return the conditions of a group, each once."""
    given = [request.condition for request in requests if request.condition is not None]
    return tuple(dict.fromkeys(given))


def streams_of(requests: Sequence[AppendRequest]) -> set[str]:
    """Return the streams that a group touches."""
    appended = {append.stream for append in _appends(requests)}
    return appended | {request.change.stream for request in requests if request.change is not None}


def _appends(requests: Sequence[AppendRequest]) -> list[StreamAppend]:
    return [append for request in requests for append in request.appends]
