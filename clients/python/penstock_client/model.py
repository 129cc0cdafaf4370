"""What goes in and what comes out: frozen values without behaviour of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any, Literal
from uuid import UUID

Expected = int | Literal["any", "no_stream", "stream_exists"]
"""The version that a stream must have for an append to be accepted."""

Direction = Literal["forward", "backward"]


def new_id() -> UUID:
    """Return a UUID (version 7): ids made one after another lie side by side in indexes."""
    ms = time.time_ns() // 1_000_000
    value = (ms & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10))
    value = value & ~(0xF << 76) | 7 << 76
    return UUID(int=value & ~(0b11 << 62) | 0b10 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event to append. `data` fits the schema of `category.type`.

    In `data` and `metadata` datetime (with a time zone), date, Decimal and UUID are sent as texts.
    `id` is made here and now, so that appending the same object twice records it once.
    `occurred_at` None is the time of recording; it needs a time zone.
    """

    type: str
    data: Mapping[str, Any]
    id: UUID = field(default_factory=new_id)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    occurred_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAppend:
    """Events for one stream, in order, as part of an append to several."""

    stream: str
    events: tuple[NewEvent, ...]
    expected_version: Expected = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryItem:
    """Events of any of these types (`type` or `category.type`; none: all) with all these tags."""

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """No event behind position `after` may match any of the items, or the append is refused.

    `after` is the `head` of the `query` that the decision was made on.
    """

    query: tuple[QueryItem, ...]
    after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A recorded event. Positions count from 1 over the store, versions from 0 in the stream.

    Times are UTC with microseconds. `unreadable` says why the service cannot show an event's data,
    which are None then.
    """

    id: UUID
    stream: str
    category: str
    version: int
    position: int
    type: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    tags: tuple[str, ...]
    occurred_at: datetime
    recorded_at: datetime
    unreadable: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAppended:
    """Where the events of one stream are; both ranges are inclusive and without gaps."""

    stream: str
    first_version: int
    last_version: int
    first_position: int
    last_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPage:
    """Part of one stream, in the asked direction, and the stream's present version."""

    stream: str
    version: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """A stream by its last event: see `streams.list`."""

    stream: str
    category: str
    version: int
    position: int
    recorded_at: datetime
    deleted: bool
    tombstoned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CategorySummary:
    """A category by its last event. It has `streams` streams, or more where `more` says so."""

    category: str
    streams: int
    more: bool
    position: int
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamMetadata:
    """A stream's version and what it shows: see `streams.set` and `streams.delete`.

    A deleted stream is not found until somebody appends; a tombstoned one is gone for good. Events
    below version `archived_up_to` are in the archive, and read as before.
    """

    stream: str
    version: int
    deleted: bool
    tombstoned: bool
    truncate_before: int
    max_age_s: int | None
    max_count: int | None
    archived_up_to: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPage:
    """Part of the whole store. `next_after` is where the next call goes on.

    It equals `head` when everything was looked at; a filtered page may be short before that.
    """

    events: tuple[Event, ...]
    head: int
    next_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """All that there was has been given; what follows happens now. Comes once per connection."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """One version of an event type's schema. `subject` is `category.type`."""

    subject: str
    id: int
    version: int
    schema: Mapping[str, Any]


Level = Literal[
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
]
"""What a new version of a schema must get on with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What an import has done. `repeated`: events that were there already."""

    lines: int
    appended: int
    repeated: int
    last_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCheck:
    """Whether a schema could be added, and what stands in its way."""

    subject: str
    compatible: bool
    complaints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    """What a command led to: the stream's version after it, and the events; none is an answer.

    `position` is the last event's; `version` and `position` are None for an entity without events.
    """

    stream: str
    version: int | None
    position: int | None
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """An entity's state, folded from its events up to `version`. `recorded_at` is the last one's.

    `decider_version` says by which version of the decider's code.
    """

    stream: str
    version: int
    position: int
    recorded_at: datetime
    decider_version: int
    state: Any


class Absent(Enum):
    """What a field was, or is, that was not there."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """A value of an entity's state that an event changed. `field` is a JSON pointer to it.

    `before` or `after` is `ABSENT` where the field was not there, or is not any more.
    """

    field: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedEvent:
    """An event of an entity, and what it changed in its state."""

    event: Event
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The last events that led to an entity's state, oldest first.

    `before` is the state before the first of `events`. `earlier` is the version to ask for those
    that came before; None where there are none to read.
    """

    entity: Entity
    before: Any
    events: tuple[ExplainedEvent, ...]
    earlier: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether appends and reads are accepted; reasons by part when not."""

    ready: bool
    reasons: Mapping[str, str]
