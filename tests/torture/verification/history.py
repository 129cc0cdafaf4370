"""What a history consists of: operations with their outcomes, and events as they were seen.

An event id says who made it: `event_id` packs the run, the process (one client with one request at
a time) and the number of the event into a UUID, so that sets of ten million ids are bitsets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from eventstore.conditions import Condition
from eventstore.store import Expected, StreamAppended

MAX_PROCESS = 2**16 - 1
MAX_NUMBER = 2**44 - 1
_LOW_BITS = 32
_LOW = 2**_LOW_BITS - 1
# RFC 9562: version 8 leaves all bits but those of version and variant to the application.
_FIXED = 0x8 << 76 | 0b10 << 62


def event_id(run: int, process: int, number: int) -> UUID:
    """Return the id of a process's event. `run` (32 bits) tells the ids of two runs apart."""
    high, low = number >> _LOW_BITS, number & _LOW
    return UUID(int=run << 96 | process << 80 | _FIXED | high << 64 | low)


def author(run: int, id_: int) -> tuple[int, int] | None:
    """Return (process, number) of an event id, None for ids that this run did not make."""
    number = (id_ >> 64 & 0xFFF) << _LOW_BITS | id_ & _LOW
    process = id_ >> 80 & 0xFFFF
    made = run << 96 | process << 80 | _FIXED | number >> _LOW_BITS << 64 | number & _LOW
    return (process, number) if made == id_ else None


class Seen(NamedTuple):
    """An event as a reader saw it. A tuple, for millions are made. `id` is the UUID's integer."""

    position: int
    id: int
    stream: str
    version: int
    type: str = ""
    tags: tuple[str, ...] = ()
    recorded_at_us: int = 0

    def fingerprint(self) -> int:
        """Return a number that two different events hardly share, within one process."""
        return hash(self[:4])


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One stream's part of a request: events `first` … `first + count - 1` of the process."""

    stream: str
    expected: Expected
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Acknowledged, with an answer for each write, in order."""

    answers: tuple[StreamAppended, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedAppend:
    """Certainly not done. `by`: what refused it, where the store said so."""

    by: str = ""


VERSION_CONFLICT = "version-conflict"
CONDITION_FAILED = "condition-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """No certain answer came: it happened once or not at all, at any time after its begin."""


Outcome = Accepted | RefusedAppend | Unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOperation:
    """One append by one process, all attempts with the same ids together.

    Times in nanoseconds of one monotonic clock: before the first attempt was sent, and after the
    last answer came.
    """

    process: int
    invoked_ns: int
    completed_ns: int
    writes: tuple[Write, ...]
    outcome: Outcome
    condition: Condition | None = None
