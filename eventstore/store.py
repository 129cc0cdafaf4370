"""The port of the event store: what can be asked of it, and what the answers look like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, Protocol
from uuid import UUID

from eventstore.conditions import Condition, Probed, Query
from eventstore.lifecycle import PolicyChange, StreamStanding
from eventstore.listing import CategorySummary, StreamRange, StreamSummary
from kernel.errors import InvalidRequest
from kernel.positions import Position, Version
from schemas.records import FORMAT_AVRO, RecordedEvent

Expected = Version | Literal["any", "no_stream", "stream_exists"]
"""The version that a stream must have for an append to be accepted."""

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedEvent:
    """A new event whose data is Avro already, in the five-byte framing."""

    id: UUID
    type: str
    schema_id: int
    data: bytes
    metadata: Mapping[str, object]
    tags: tuple[str, ...]
    occurred_at: datetime | None
    subject: str | None = None
    key_id: str | None = None
    data_format: int = FORMAT_AVRO


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAppend:
    """Events for one stream, in order. `category` is the stream's (see `names.category_of`)."""

    stream: str
    category: str
    expected: Expected
    events: tuple[EncodedEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest:
    """What one caller wants committed together: all of it or nothing, if `condition` holds.

    `change`: the policy of a stream changes with it. `probed`: how the condition stood before.
    """

    appends: tuple[StreamAppend, ...]
    condition: Condition | None = None
    change: PolicyChange | None = None
    probed: Probed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAppended:
    """Where the events of one `StreamAppend` are; both ranges are inclusive and without gaps."""

    stream: str
    first_version: Version
    last_version: Version
    first_position: Position
    last_position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The answer to an append. `repeated`: the events were there already, this is the answer
    that the first request got.
    """

    appends: tuple[StreamAppended, ...]
    repeated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events of the whole store are wanted; None lets everything pass.

    Raises `InvalidRequest` for a NUL, which no text of the store can have.
    """

    category: str | None = None
    type: str | None = None
    stream: str | None = None
    stream_prefix: str | None = None
    tag: str | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be looked for."""
        if any(text is not None and "\x00" in text for text in self._wanted):
            raise InvalidRequest("a filter holds a NUL character", remedy="Leave it out.")

    @property
    def everything(self) -> bool:
        """Whether no event is left out."""
        return all(text is None for text in self._wanted)

    def passes(self, event: RecordedEvent) -> bool:
        """Return whether an event is wanted."""
        return (
            self.category in (None, event.category)
            and self.type in (None, event.type, f"{event.category}.{event.type}")
            and self.stream in (None, event.stream)
            and (self.stream_prefix is None or event.stream.startswith(self.stream_prefix))
            and (self.tag is None or self.tag in event.tags)
        )

    @property
    def _wanted(self) -> tuple[str | None, ...]:
        return (self.category, self.type, self.stream, self.stream_prefix, self.tag)


EVERYTHING = EventFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPage:
    """Part of one stream in the asked direction, and the stream's present version."""

    version: Version
    events: tuple[RecordedEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Part of the whole store, by position.

    Everything at or below `scanned_to` was looked at: it is where the next read goes on, whatever
    the filter let pass. `head` was the store's last position at that moment or a little before.
    """

    events: tuple[RecordedEvent, ...]
    scanned_to: Position
    head: Position


class EventStore(Protocol):
    """An append-only store of events.

    Positions are 1, 2, 3 … in commit order, versions 0, 1, 2 … in each stream, both without gaps.
    A reader that has seen position p never later sees a new event at or below p. `recorded_at`
    never decreases with position. All methods may be called concurrently. When PostgreSQL cannot
    be reached each raises `Unavailable`.
    """

    async def append(self, request: AppendRequest) -> Appended:
        """Commit a request, all of it or nothing, and return once it is durable.

        A request whose event ids are all in the store with the same content is answered as it was
        the first time, whatever its expected version and condition. Raises `VersionConflict`,
        `ConditionFailed`, `BeyondHead` (the condition's `after`), `IdReused`, `StreamGone`,
        `InvalidRequest` (too many categories), `Overloaded` (queue full), `StorageFull`,
        `OutcomeUnknown` (repeat with the same ids); after every other error nothing was kept.
        """
        ...

    async def read_stream(
        self, stream: str, *, from_version: int | None, direction: Direction, limit: int
    ) -> StreamPage:
        """Return up to `limit` events from `from_version` (inclusive; None: the near end).

        A page of large events ends sooner, after `sizes.PAGE_BYTES`. What the stream's policy
        hides is left out. Raises `NotFound` for a stream that has no events or was deleted,
        `StreamGone` for one that was deleted for good.
        """
        ...

    async def standing(self, stream: str) -> StreamStanding:
        """Return a stream's last version and policy, or raise `NotFound`."""
        ...

    async def read_all(
        self, *, after: int, limit: int, filter_: EventFilter = EVERYTHING
    ) -> EventPage:
        """Return up to `limit` events behind position `after`, looking at a bounded number.

        A page of large events ends sooner, after `sizes.PAGE_BYTES`.
        """
        ...

    async def query(self, query: Query, *, after: int, limit: int) -> EventPage:
        """Return up to `limit` events behind `after` that match, looking at a bounded number.

        Once `scanned_to` equals `head`, that is the `after` of a `Condition` on the same query.
        """
        ...

    async def event(self, event_id: UUID) -> RecordedEvent:
        """Return one event by its id, or raise `NotFound`."""
        ...

    async def streams(self, range_: StreamRange, *, limit: int) -> tuple[StreamSummary, ...]:
        """Return the first streams of a range by name, in the order of code points.

        Deleted streams are among them, those that record the life of another are not.
        """
        ...

    async def categories(self) -> tuple[CategorySummary, ...]:
        """Return all categories by name. Their streams are counted up to `COUNTED_STREAMS`."""
        ...

    async def head(self) -> Position:
        """Return the last position, 0 for an empty store."""
        ...
