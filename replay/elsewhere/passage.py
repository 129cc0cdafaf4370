"""Sends selected events to a target, each when it is due, from where the target is.

1. The target says up to which position it has this replay's events: what a killed one left there.
2. Events behind it are read in order of position, their times moved.
3. Those that are due go out together; the target keeps them and their place at once, or can tell
   of each whether it is there. Whoever is killed anywhere goes on at 1, and sends nothing twice.
The schedule begins anew with every process: a pause is not caught up with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol

from replay.elsewhere.pace import AtOnce, Pace, Schedule
from replay.elsewhere.selection import SelectedEvents, Survey
from replay.elsewhere.times import Shift
from schemas.records import RecordedEvent

MOST_EVENTS, MOST_BYTES = 1_000, 4 * 2**20
"""Of what goes out together."""
TICK_S = 1.0
_LATE_S = 1.0
"""Behind its schedule by more, a replay is as quick as its target, not as its pace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An event with the times that it has in the replay, beside the one that was recorded."""

    event: RecordedEvent
    origin: RecordedEvent

    @property
    def nbytes(self) -> int:
        """About how large it is."""
        return len(self.event.data) + 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """What goes out together: so many events or bytes at most, and what is due within `wait_s`."""

    events: int = MOST_EVENTS
    bytes: int = MOST_BYTES
    wait_s: float = 0.0


AT_ONCE = Batching()
"""Nothing waits for anything behind it."""


class PassageTarget(Protocol):
    """Another place for events. Takes them in order of position."""

    @property
    def batching(self) -> Batching:
        """Return what it takes together."""
        return AT_ONCE

    def reached(self) -> int:
        """Return the origin's position up to which all events of this replay are there.

        Raises `Conflict` where the target has something else.
        """
        ...

    def send(self, events: Sequence[Moved]) -> None:
        """Add events behind those that are there. Durable when it returns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageProgress:
    """How far a replay is. `events` of `of` are there, `rate` a second were sent by this process.

    `eta_s`: seconds left, None as long as nothing tells. `behind_events`: those still to be sent;
    `behind_s`: the time, in the origin, between the last one sent and the last one of all.
    `late_s`: how far behind its own schedule.
    """

    events: int
    of: int
    rate: float
    eta_s: float | None
    behind_events: int
    behind_s: float
    late_s: float

    @property
    def line(self) -> str:
        """One line for people."""
        told = [f"{self.events:,} of {self.of:,} events, {self.rate:,.0f}/s"]
        if self.eta_s is not None:
            told.append(f"{self.eta_s:,.0f} s left")
        told.append(f"{self.behind_events:,} events and {self.behind_s:,.0f} s behind the end")
        if self.late_s >= _LATE_S:
            told.append(f"{self.late_s:,.0f} s behind its schedule")
        return ", ".join(told)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageClock:
    """Seconds that go by, and waiting."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True, kw_only=True)
class Passage:
    """One replay of events, by one process. `whole` surveys all of them.

    `sent` and `seconds`: what this process has sent, and how long that took it.
    """

    events: SelectedEvents
    whole: Survey
    target: PassageTarget
    shift: Shift
    pace: Pace
    report: Callable[[PassageProgress], None]
    clock: PassageClock = field(default_factory=PassageClock)
    sent: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    _before: int = field(default=0, init=False)
    _due: float = field(default=0.0, init=False)
    _lasts: float = field(default=0.0, init=False)
    _started: float = field(default=0.0, init=False)
    _told_at: float = field(default=0.0, init=False)
    _newest: datetime | None = field(default=None, init=False)

    def run(self) -> None:
        """Send what the target does not have. Raises `Conflict` where it has something else."""
        self._started = self._told_at = self.clock.now()
        reached = self.target.reached()
        if reached >= self.whole.last:
            self._before = self.whole.events
            return
        left = self.events.survey(self.pace, after=reached)
        self._before = self.whole.events - left.events
        self._lasts = left.seconds
        # Looking for what is there is no part of the schedule.
        self._started = self._told_at = self.clock.now()
        for batch in self._batches(reached):
            self.target.send(batch)
            self.sent += len(batch)
            self._newest = batch[-1].origin.recorded_at
            self._tell()
        self.seconds = self._elapsed
        self.report(self.progress())

    def _batches(self, reached: int) -> Iterator[list[Moved]]:
        """Yield events that are due, as many together as may be."""
        schedule, most = Schedule(self.pace), self.target.batching
        batch: list[Moved] = []
        size, until = 0, 0.0
        for origin in self.events.after(reached):
            due = schedule.due(origin.recorded_at, origin.occurred_at)
            full = len(batch) >= most.events or size >= most.bytes
            if batch and (full or due > max(self._elapsed, until)):
                yield batch
                batch, size = [], 0
            if not batch:
                until = due + most.wait_s
            self._due = due
            self._wait(due)
            batch.append(Moved(event=self._moved(origin), origin=origin))
            size += batch[-1].nbytes
        if batch:
            yield batch

    def _moved(self, origin: RecordedEvent) -> RecordedEvent:
        times = self.shift.moved(origin.occurred_at), self.shift.moved(origin.recorded_at)
        return replace(origin, occurred_at=times[0], recorded_at=times[1])

    def _wait(self, due: float) -> None:
        while (left := due - self._elapsed) > 0:
            self.clock.sleep(min(left, TICK_S))
            self._tell()

    @property
    def _elapsed(self) -> float:
        return self.clock.now() - self._started

    def _tell(self) -> None:
        if self.clock.now() - self._told_at >= TICK_S:
            self._told_at = self.clock.now()
            self.report(self.progress())

    def progress(self) -> PassageProgress:
        """Return how far it is now."""
        elapsed = max(self._elapsed, 1e-6)
        left = self.whole.events - self._before - self.sent
        rate = self.sent / elapsed
        late = 0.0 if isinstance(self.pace, AtOnce) else max(0.0, elapsed - self._due)
        eta: float | None
        if not left:
            eta, late = 0.0, 0.0
        elif not isinstance(self.pace, AtOnce) and late < _LATE_S:
            eta = max(0.0, self._lasts - elapsed)
        else:
            eta = left / rate if self.sent else None
        newest = self._newest or self.whole.recorded[0]
        return PassageProgress(
            events=self._before + self.sent,
            of=self.whole.events,
            rate=rate,
            eta_s=eta,
            behind_events=left,
            behind_s=(self.whole.recorded[1] - newest).total_seconds() if left else 0.0,
            late_s=late,
        )
