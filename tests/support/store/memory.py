"""The event store in memory, and what deciders keep beside it: for tests of what uses a store.

It shares the appender and the rules with the one in PostgreSQL; only the group's commit differs.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from eventstore.appender import Appender, AppendLimits, AppendObserver
from eventstore.conditions import Condition, Query
from eventstore.deciders.answers import KeptAnswer, KeyLocks
from eventstore.deciders.snapshots import Snapshot, Stands, kept_beside
from eventstore.decision import (
    MAX_CATEGORIES,
    Outcome,
    Placed,
    SameData,
    StoreState,
    conditions_of,
    decide_group,
    ids_of,
    same_bytes,
    streams_of,
)
from eventstore.feed import Head
from eventstore.intake import KeptSchemas
from eventstore.lifecycle import (
    SHOWS_ALL,
    StreamPolicy,
    StreamStanding,
    check_readable,
    first_shown,
    is_metadata,
    metadata_stream,
)
from eventstore.listing import COUNTED_STREAMS, CategorySummary, StreamRange, StreamSummary
from eventstore.names import unknown_event, unknown_stream
from eventstore.sizes import page_of
from eventstore.store import (
    EVERYTHING,
    Appended,
    AppendRequest,
    Direction,
    EventFilter,
    EventPage,
    StreamPage,
)
from kernel.clock import Clock, SystemClock
from kernel.positions import Position, Version
from schemas.records import RecordedEvent

_SCAN = 10_000


class MemoryGroupCommit:
    """Lists and dictionaries; a commit is one step of the event loop."""

    def __init__(self, *, clock: Clock, same_data: SameData, max_categories: int) -> None:
        self.store_id = str(uuid.uuid4())
        self.events: list[RecordedEvent] = []
        self.by_id: dict[UUID, Placed] = {}
        self.streams: dict[str, list[RecordedEvent]] = defaultdict(list)
        self.policies: dict[str, StreamPolicy] = {}
        self.clock = clock
        self._same_data = same_data
        self._max_categories = max_categories
        self._recorded_at = datetime.min.replace(tzinfo=UTC)

    async def prepare(self) -> Position:
        """Nothing to prepare."""
        return Position(len(self.events))

    async def commit(self, requests: Sequence[AppendRequest]) -> tuple[list[Outcome], Position]:
        """Decide a group and keep what was accepted."""
        await asyncio.sleep(0)  # Others run in between, as they do around a real commit.
        self._recorded_at = max(self._recorded_at, self.clock.now())
        state = StoreState(
            position=len(self.events),
            recorded_at=self._recorded_at,
            heads={
                stream: len(self.streams[stream]) - 1
                for stream in streams_of(requests)
                if stream in self.streams
            },
            known={id_: self.by_id[id_] for id_ in ids_of(requests) if id_ in self.by_id},
            categories={event.category for event in self.events},
            matched={condition: self._newest(condition) for condition in conditions_of(requests)},
            policies={s: self.policies[s] for s in streams_of(requests) if s in self.policies},
        )
        outcomes = decide_group(
            requests, state, same_data=self._same_data, max_categories=self._max_categories
        )
        self.policies |= {stream: state.policies[stream] for stream in state.changed}
        for place in state.placed:
            event = _record(place, self.store_id)
            self.by_id[event.id] = place
            self.events.append(event)
            self.streams[event.stream].append(event)
        return outcomes, Position(len(self.events))

    def _newest(self, condition: Condition) -> int | None:
        for event in reversed(self.events[condition.after :]):
            if condition.query.matches(event.category, event.type, event.tags):
                return event.position
        return None

    async def close(self) -> None:
        """Nothing to close."""


class MemoryEventStore:
    """An `EventStore` without durability. Use as an async context manager."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        limits: AppendLimits | None = None,
        observer: AppendObserver | None = None,
        same_data: SameData = same_bytes,
        max_categories: int = MAX_CATEGORIES,
    ) -> None:
        self.feed_head = Head()
        self._group = MemoryGroupCommit(
            clock=clock or SystemClock(), same_data=same_data, max_categories=max_categories
        )
        self.appender = Appender(self._group, self.feed_head, limits=limits, observer=observer)

    async def __aenter__(self) -> MemoryEventStore:
        self.appender.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.appender.stop()

    async def append(self, request: AppendRequest) -> Appended:
        """Commit a request; see `EventStore.append`."""
        return await self.appender.append(request)

    async def read_stream(
        self, stream: str, *, from_version: int | None, direction: Direction, limit: int
    ) -> StreamPage:
        """Return part of a stream; see `EventStore.read_stream`."""
        standing = await self.standing(stream)
        check_readable(standing)
        events = self._group.streams[stream]
        floor = first_shown(standing.policy, standing.version)
        if standing.policy.max_age_s is not None:
            since = self._group.clock.now() - timedelta(seconds=standing.policy.max_age_s)
            floor = max(floor, sum(event.recorded_at < since for event in events))
        if direction == "forward":
            first = max(from_version or 0, floor)
            found = events[first : first + limit]
        else:
            last = len(events) - 1 if from_version is None else from_version
            found = events[max(last - limit + 1, floor) : last + 1][::-1]
        return StreamPage(version=standing.version, events=tuple(page_of(found, limit)))

    async def standing(self, stream: str) -> StreamStanding:
        """Return how a stream stands; see `EventStore.standing`."""
        events = self._group.streams.get(stream)
        if not events:
            raise unknown_stream(stream)
        metadata = self._group.streams.get(metadata_stream(stream))
        return StreamStanding(
            stream=stream,
            version=Version(len(events) - 1),
            policy=self._group.policies.get(stream, SHOWS_ALL),
            metadata_version=Version(len(metadata) - 1) if metadata else None,
        )

    async def read_all(
        self,
        *,
        after: int,
        limit: int,
        filter_: EventFilter = EVERYTHING,
        up_to: Position | None = None,
    ) -> EventPage:
        """Return part of the store; see `EventStore.read_all`. It knows its head."""
        return self._page(after, limit, filter_.passes)

    async def query(self, query: Query, *, after: int, limit: int) -> EventPage:
        """Return events that match; see `EventStore.query`."""

        def wanted(event: RecordedEvent) -> bool:
            return query.matches(event.category, event.type, event.tags)

        return self._page(after, limit, wanted)

    def _page(self, after: int, limit: int, wanted: Callable[[RecordedEvent], bool]) -> EventPage:
        head = len(self._group.events)
        scanned_to = max(after, min(head, after + _SCAN))
        found = [event for event in self._group.events[after:scanned_to] if wanted(event)]
        events = tuple(page_of(found, limit))
        if events and (len(events) == limit or len(events) < len(found)):
            scanned_to = events[-1].position
        return EventPage(events=events, scanned_to=Position(scanned_to), head=Position(head))

    async def event(self, event_id: UUID) -> RecordedEvent:
        """Return one event; see `EventStore.event`."""
        place = self._group.by_id.get(event_id)
        if place is None:
            raise unknown_event(event_id)
        return self._group.events[place.position - 1]

    async def streams(self, range_: StreamRange, *, limit: int) -> tuple[StreamSummary, ...]:
        """Return streams by name; see `EventStore.streams`."""
        return tuple(self._summary(stream) for stream in self._named(range_)[:limit])

    async def categories(self) -> tuple[CategorySummary, ...]:
        """Return all categories; see `EventStore.categories`."""
        last = {event.category: event for event in self._group.events}
        counts = {name: len(self._named(StreamRange(prefix=f"{name}-"))) for name in last}
        return tuple(
            CategorySummary(
                category=name,
                streams=min(counts[name], COUNTED_STREAMS),
                more=counts[name] > COUNTED_STREAMS,
                position=last[name].position,
                recorded_at=last[name].recorded_at,
            )
            for name in sorted(last)
        )

    def _named(self, range_: StreamRange) -> list[str]:
        streams = self._group.streams
        found = [name for name in streams if streams[name] and range_.holds(name)]
        return sorted(name for name in found if not is_metadata(name))

    def _summary(self, stream: str) -> StreamSummary:
        last = self._group.streams[stream][-1]
        policy = self._group.policies.get(stream, SHOWS_ALL)
        return StreamSummary(
            stream=stream,
            category=last.category,
            version=last.version,
            position=last.position,
            recorded_at=last.recorded_at,
            deleted=policy.deleted,
            tombstoned=policy.tombstoned,
        )

    async def head(self) -> Position:
        """Return the last position."""
        return Position(len(self._group.events))


def _record(place: Placed, store_id: str) -> RecordedEvent:
    event = place.event
    return RecordedEvent(
        store_id=store_id,
        position=Position(place.position),
        id=event.id,
        stream=place.stream,
        version=Version(place.version),
        category=place.category,
        type=event.type,
        schema_id=event.schema_id,
        data_format=event.data_format,
        data=event.data,
        subject=event.subject,
        key_id=event.key_id,
        metadata=event.metadata,
        tags=event.tags,
        occurred_at=place.occurred_at,
        recorded_at=place.recorded_at,
    )


class MemoryAnswers(KeyLocks):
    """Answers kept in this process, for as long as it lives."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, KeptAnswer] = {}

    async def find(self, key: str) -> KeptAnswer | None:
        """Return the answer that is kept for a key."""
        return self._kept.get(key)

    async def keep(self, answer: KeptAnswer) -> None:
        """Keep an answer; the first one for a key stays."""
        self._kept.setdefault(answer.key, answer)


class MemorySnapshots:
    """Snapshots kept in this process."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], dict[Version, Snapshot]] = {}

    async def newest(
        self,
        stream: str,
        decider: str,
        *,
        version: int | None = None,
        at: datetime | None = None,
    ) -> Snapshot | None:
        """Return the greatest that fits."""
        fitting = [
            each
            for each in self.kept.get((stream, decider), {}).values()
            if (version is None or each.version <= version)
            and (at is None or each.recorded_at <= at)
        ]
        return max(fitting, key=lambda each: each.version, default=None)

    async def would_keep(self, stream: str, decider: str, stand: Stands) -> bool:
        """Look at what is kept."""
        stay = kept_beside(stand, self.kept.get((stream, decider), {}).values())
        return stay is not None and stand.version in stay

    async def keep(self, snapshot: Snapshot) -> None:
        """Keep a snapshot beside others."""
        key = (snapshot.stream, snapshot.decider)
        kept = self.kept.get(key, {})
        stay = kept_beside(snapshot, kept.values())
        if stay is None:
            return
        kept = {**kept, snapshot.version: snapshot}
        self.kept[key] = {version: each for version, each in kept.items() if version in stay}


class MemorySchemaCache:
    """Schemas kept in this process."""

    def __init__(self) -> None:
        self._schemas: dict[int, str] = {}
        self._subjects: dict[str, int] = {}
        self._lock = asyncio.Lock()

    async def load(self) -> KeptSchemas:
        """Return all of them."""
        return KeptSchemas(schemas=dict(self._schemas), subjects=dict(self._subjects))

    async def schema(self, schema_id: int) -> str | None:
        """Return the text of a schema, None when it is not kept."""
        return self._schemas.get(schema_id)

    async def written(self, subject: str) -> tuple[int, str] | None:
        """Return what `subject` is written with now."""
        schema_id = self._subjects.get(subject)
        return None if schema_id is None else (schema_id, self._schemas[schema_id])

    async def keep(self, subject: str, schema_id: int, schema_json: str) -> None:
        """Keep a schema."""
        self._schemas[schema_id] = schema_json
        self._subjects[subject] = schema_id

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Let one task in at a time."""
        async with self._lock:
            yield
