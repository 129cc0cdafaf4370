"""Moving events out of the database, once they are safe in the log.

    streams -> [what may leave] -> batch -> [equal in the log?] -> recorded -> moved

1. Take a batch of events that may leave: the oldest of each stream.
2. Compare each with the log, byte for byte. Of a stream goes what is equal, up to the first event
   that is not there yet or is another.
3. Record how far each stream is in the archive: an event with a position in its metadata stream.
4. Move: what stays of an event in the database, and the deletion, in one transaction.

A crash between 3 and 4 leaves events that are recorded as archived and still here. Nobody sees a
difference; the next run takes them first.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from eventstore.archive import Archive, Archived
from eventstore.lifecycle import StreamStanding
from kernel import failpoints
from kernel.positions import Position
from schemas.records import RecordedEvent

MAX_EVENTS = 500
"""Events in one transaction: appends wait for some ten milliseconds meanwhile."""
MAX_BYTES = 16 * 1024 * 1024
_NAMED = 20

Recorder = Callable[[str, int], Awaitable[None]]
"""Records that a stream's events below a version are in the archive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """A stream of which the versions from `first` to below `below` may leave the database."""

    standing: StreamStanding
    first: int
    below: int

    @property
    def count(self) -> int:
        """How many events that are."""
        return max(0, self.below - self.first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An event that may leave, and the texts that lines of JSON show of it."""

    event: RecordedEvent
    metadata_text: str | None
    tags_text: str | None


class Holder(Protocol):
    """The database side: what is there, and taking it out."""

    def leaving(self) -> AsyncIterator[Leaving]:
        """Yield the streams of which something may leave, each once."""
        ...

    async def events(
        self, stream: str, *, from_version: int, below: int, limit: int, limit_bytes: int
    ) -> list[Candidate]:
        """Return the next events of a stream, at least one where there is one."""
        ...

    async def move(self, positions: Sequence[Position]) -> int:
        """Take events out and return how many were still there. All of them or none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """Why the rest of a stream stays for now: from this version on."""

    stream: str
    version: int
    reason: str


@dataclass(slots=True, kw_only=True)
class ArchiveReport:
    """What a run has done so far. `planned`: events that might have left when it began."""

    planned: int = 0
    streams: int = 0
    events: int = 0
    bytes: int = 0
    seconds: float = 0.0
    staying: int = 0
    first_staying: list[Staying] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class _Part:
    """The events of one stream that are in the batch."""

    leaving: Leaving
    candidates: list[Candidate]


class ArchiveRun:
    """One run over some streams. Memory is bounded by a batch."""

    def __init__(
        self,
        holder: Holder,
        archive: Archive,
        record: Recorder,
        *,
        same_text: Callable[[Candidate, RecordedEvent], bool],
        show: Callable[[ArchiveReport], None],
        max_events: int = MAX_EVENTS,
    ) -> None:
        self._holder = holder
        self._archive = archive
        self._record = record
        self._same_text = same_text
        self._show = show
        self._max_events = max_events
        self._batch: list[_Part] = []
        self._stopped: set[str] = set()
        self.report = ArchiveReport()

    async def plan(self) -> ArchiveReport:
        """Count what may leave, and change nothing."""
        async for leaving in self._holder.leaving():
            self.report.planned += leaving.count
            self.report.streams += 1
        return self.report

    async def run(self) -> ArchiveReport:
        """Archive all that may leave. Raises `Unavailable` where database or log is away."""
        began = time.monotonic()
        self.report.planned = (await self.plan()).planned
        self.report.streams = 0
        async for leaving in self._holder.leaving():
            await self._take(leaving, began)
        await self._flush(began)
        return self.report

    async def _take(self, leaving: Leaving, began: float) -> None:
        stream = leaving.standing.stream
        version = leaving.first
        while version < leaving.below and stream not in self._stopped:
            candidates = await self._holder.events(
                stream,
                from_version=version,
                below=leaving.below,
                limit=self._max_events - self._events,
                limit_bytes=max(1, MAX_BYTES - self._bytes),
            )
            if not candidates:
                return
            version = candidates[-1].event.version + 1
            self._batch.append(_Part(leaving=leaving, candidates=candidates))
            if self._events >= self._max_events or self._bytes >= MAX_BYTES:
                await self._flush(began)

    @property
    def _events(self) -> int:
        return sum(len(part.candidates) for part in self._batch)

    @property
    def _bytes(self) -> int:
        return sum(len(each.event.data) for part in self._batch for each in part.candidates)

    async def _flush(self, began: float) -> None:
        parts, self._batch = self._batch, []
        if not parts:
            return
        found = await self._archive.find(
            [
                Archived(store_id=each.event.store_id, position=each.event.position)
                for part in parts
                for each in part.candidates
            ]
        )
        positions: list[Position] = []
        for part in parts:
            equal = [each.event for each in self._equal(part, found)]
            if not equal:
                continue
            if equal[-1].version >= part.leaving.standing.policy.archived_up_to:
                await self._record(part.leaving.standing.stream, equal[-1].version + 1)
            positions += [event.position for event in equal]
            self.report.bytes += sum(len(event.data) for event in equal)
            self.report.streams += equal[0].version == part.leaving.first
        failpoints.hit(failpoints.ARCHIVE_AFTER_RECORD)
        if positions:
            self.report.events += await self._holder.move(positions)
        failpoints.hit(failpoints.ARCHIVE_AFTER_COMMIT)
        self.report.seconds = time.monotonic() - began
        self._show(self.report)

    def _equal(self, part: _Part, found: Mapping[Position, RecordedEvent]) -> Iterator[Candidate]:
        """Yield events up to the first one that must stay."""
        for each in part.candidates:
            if each.event.stream in self._stopped:
                return
            reason = self._differs(each, found.get(each.event.position))
            if reason is not None:
                self._stays(each.event, reason)
                return
            yield each

    def _differs(self, candidate: Candidate, found: RecordedEvent | None) -> str | None:
        if found is None:
            return "not in the log yet"
        if found != candidate.event:
            return "the log has another event at its position"
        if not self._same_text(candidate, found):
            return "the log would show its metadata in another form"
        return None

    def _stays(self, event: RecordedEvent, reason: str) -> None:
        self._stopped.add(event.stream)
        self.report.staying += 1
        if len(self.report.first_staying) < _NAMED:
            self.report.first_staying.append(
                Staying(stream=event.stream, version=event.version, reason=reason)
            )
