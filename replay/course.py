"""The course of one build, as the process that runs it sees it: progress, and what the book says.

Every few seconds a row goes to the book, so that others see that the build lives. The answer tells
what they want: somebody may have paused or cancelled it, or taken it over from a process that was
not heard of for too long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from kernel.errors import Cancelled, Conflict, NotFound, Unavailable
from kernel.positions import Epoch
from pipeline.commit.manifest import Manifest
from replay.book import CLAIM, Replay, ReplayBook, State
from replay.estimate import seconds_left
from replay.progress import TICK_S, BuildProgress
from replay.rates import Rates
from replay.slices import SlicedBuild
from replay.strides import Strides

Report = Callable[[BuildProgress], None]
_RECENT = 2
"""Slices whose pace, with that of the one under way, is the rate that is told."""
_LEAST_SHARE = 0.1
"""Of a mean slice, what a small one takes at least: its commit."""
_LAID_SHARE = 0.1
"""Of a row that a limited rate lets through, what one counts that is read to be laid apart."""


def age_at(manifest: Manifest, epoch: Epoch) -> float | None:
    """Return how many seconds ago an epoch was committed; None where nobody knows any more."""
    try:
        return (datetime.now(UTC) - manifest.at(epoch).at).total_seconds()
    except NotFound:
        return None  # Retention took the epoch while the build rested.


@dataclass(slots=True, kw_only=True)
class Course:
    """Counts slices and keeps the book informed.

    `age_s`: of the newest input, at the start; None where nobody knows any more.
    `sizes`: of the slices, where they are not about equally large. `rates`: of former builds, which
    tell the time left as long as no slice does; a build that has but one slice knows no other.
    """

    book: ReplayBook
    replay: Replay
    build: SlicedBuild
    report: Report
    every_s: float
    age_s: float | None
    sizes: Sequence[int] = ()
    rates: Rates | None = None
    stride: int = 1
    """How many slices are computed at once."""
    laid: int | None = None
    """Input rows that were laid apart so far, while that is what is done."""
    pausing: bool = False
    lost: bool = False
    _started: float = field(default_factory=time.monotonic)
    _recorded: float = field(default_factory=time.monotonic)
    _slice_began: float = field(default_factory=time.monotonic)
    _seconds_before: int = 0
    _rows_before: int = 0
    _rows_laid: int = 0
    _paces: list[tuple[float, int]] = field(default_factory=list)
    _strides: Strides = field(default_factory=Strides)

    def tick(self, share: float) -> bool:
        """Take note of the share of the slice under way; return whether to go on with it."""
        progress = self._progress(share)
        self.report(progress)
        if time.monotonic() - self._recorded < self.every_s:
            return True
        return self._record(progress)

    @property
    def running_s(self) -> float:
        """How long the slice under way has taken so far."""
        return time.monotonic() - self._slice_began

    def finished(self, seconds: float, many: int = 1) -> None:
        """Take note of slices that are in the table, by one commit.

        Raises `Cancelled`, and `Conflict` if lost.
        """
        times = (*self.build.seconds, *(round(seconds / many, 3) for _ in range(many)))
        size = sum(self._sizes()[self.build.done : self.build.done + many])
        self._strides.took(many, seconds * many / size if size else seconds)
        self.build = replace(self.build, done=self.build.done + many, seconds=times)
        if self.build.strides and self.build.rate is None:
            left = self.build.slicing.slices - self.build.done
            self.stride = max(1, min(self._strides.next(), left))
        self._paces.append((time.monotonic(), self.build.rows_done))
        # What is told and written now is a part of what the next one takes.
        self._slice_began = time.monotonic()
        progress = self._progress(0.0)
        self.report(progress)
        self._or_raise(self._record(progress))

    def wait(self) -> None:
        """Wait until the next slice may begin, where the rate is limited."""
        if self.build.rate is None:
            return
        rows = self.build.rows_done - self._rows_before + _LAID_SHARE * self._rows_laid
        due = self._started + rows / self.build.rate
        while not self.pausing and (left := due - time.monotonic()) > 0:
            time.sleep(min(left, TICK_S))
            self._slice_began = time.monotonic()
            self._or_raise(self.tick(0.0))

    def lays(self, rows: int) -> None:
        """Take note of rows that were laid apart. Raises as `finished`."""
        self._rows_laid += rows
        self.laid = self._rows_laid
        self._count_laying()
        progress = self._progress(0.0)
        self.report(progress)
        self._or_raise(self._record(progress))

    def laid_apart(self) -> None:
        """Take note that slices begin, whose time that before them is no part of."""
        self.laid = None
        self._count_laying()
        self._paces.append((self._slice_began, self.build.rows_done))

    def _count_laying(self) -> None:
        """Add what this piece took, without what was waited for before it where a rate is limited.

        The book has it with the next row: a process that goes on begins with it.
        """
        took = round(self.build.laying_s + self.running_s, 3)
        self.build = replace(self.build, laying_s=took)
        self._slice_began = time.monotonic()

    def paused(self) -> Replay:
        """Note how far the build came before it paused."""
        now = self.replay.now(State.PAUSED, detail=self.build.detail)
        return self.book.record(now, after=(State.PAUSED,), claim=self.build.claim)

    def found(self, done: int) -> None:
        """Take note of how many slices the table has, when a process begins with it."""
        self.build = replace(self.build, done=done)
        self._slice_began = time.monotonic()
        self._seconds_before = len(self.build.seconds)
        self._rows_before = self.build.rows_done

    def built(self) -> Replay:
        """Note that all of it is there, and what it took."""
        build = self.build
        detail: dict[str, object] = {"rows": build.rows, "slices": build.slicing.slices}
        if build.base is None:
            # Rows that were copied tell nothing of how fast rows are computed.
            detail["seconds"] = round(sum(build.seconds) + build.laying_s, 3)
        else:
            detail["base"] = asdict(build.base)
        now = self.replay.now(State.BUILT, epoch=build.up_to, detail=detail)
        return self.book.record(now, after=(State.BUILDING, State.PAUSED), claim=build.claim)

    def stopped(self, error: BaseException) -> bool:
        """Note why the build stopped; return False where somebody had cancelled it."""
        why = str(error) or "interrupted by its operator"
        detail = {**self.build.detail, "error": why[:2000]}
        now = self.replay.now(State.STOPPED, detail=detail)
        try:
            self.book.record(now, after=(State.BUILDING, State.PAUSED), claim=self.build.claim)
        except Cancelled:
            return False
        except (Conflict, Unavailable):
            # It was taken over, and what it is its new process says; or the disk of the lake is
            # full, which is why it stopped: a build of which nothing is heard is gone on with too.
            return True
        return True

    def taken_over(self) -> Conflict:
        """Return what a process is told that lost its build to another one."""
        return Conflict(
            f"another process went on with {self._which}: it was resumed, or nothing was heard of "
            "this one",
            remedy=f"penstock replay status {self.replay.name}",
        )

    @property
    def _which(self) -> str:
        return f"generation {self.replay.generation} of {self.replay.name}"

    def _or_raise(self, goes_on: bool) -> None:
        if goes_on:
            return
        if self.lost:
            raise self.taken_over()
        raise Cancelled(f"{self._which} was cancelled")

    def _record(self, progress: BuildProgress) -> bool:
        self._recorded = time.monotonic()
        now = self.replay.now(State.BUILDING, detail={**asdict(progress), **self.build.detail})
        try:
            self.book.record(now, after=(State.BUILDING,), claim=self.build.claim)
        except Cancelled:
            return False
        except Conflict:
            self.pausing = self._is_paused()
            self.lost = not self.pausing
            return self.pausing
        except Unavailable:
            # What counts is in the table. Where that fails as well, it ends the build.
            return True
        return True

    def _is_paused(self) -> bool:
        known = self.book.known(self.replay.name, self.replay.generation)
        return (
            known is not None
            and known.state is State.PAUSED
            and known.detail.get(CLAIM) == self.build.claim
        )

    def _progress(self, share: float) -> BuildProgress:
        build = self.build
        now = time.monotonic()
        elapsed = now - self._started
        share = share if self.laid is None else 0.0
        under_way = share * self.stride * build.rows / build.slicing.slices
        done = min(build.rows, build.rows_done + int(under_way))
        since, before = [(self._started, self._rows_before), *self._paces][-1 - _RECENT :][0]
        return BuildProgress(
            rows=build.rows,
            done=done,
            slice=build.done,
            slices=build.slicing.slices,
            rate=(done - before) / max(now - since, 0.001),
            eta_s=self.time_left(),
            behind_rows=build.rows - done + build.since + build.later,
            behind_s=None if self.age_s is None else self.age_s + elapsed,
            since=build.since,
            laid=self.laid,
        )

    def time_left(self) -> tuple[float, float] | None:
        """Return the bounds of the time left: looks at as many slices as the next one are told."""
        build, sizes, many = self.build, self._sizes(), self.stride
        if not build.seconds and build.base is None and self.rates is not None:
            return self.rates.left(build.rows, build.laying_s + self.running_s)
        if self.laid is not None:
            return None
        looks = self._strides.ahead(sizes[build.done :], many)
        return seconds_left(
            self._strides.at(many),
            len(looks),
            earlier=[s * many for s in _whole(build.seconds[: self._seconds_before], sizes)],
            running_s=self.running_s,
            pace_s=0.0 if build.rate is None else build.rows / len(sizes) * many / build.rate,
            sizes=looks,
        )

    def _sizes(self) -> list[float]:
        """Return how much of a mean slice each one is."""
        return _shares(self.sizes) or [1.0] * self.build.slicing.slices


def _shares(sizes: Sequence[int]) -> list[float]:
    """Return how much of a mean slice each one is; none where that is not known."""
    mean = sum(sizes) / max(len(sizes), 1)
    return [max(size / mean, _LEAST_SHARE) for size in sizes] if mean else []


def _whole(seconds: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Return how long mean slices would have taken in place of these."""
    return [each / share for each, share in zip(seconds, shares, strict=False)]
