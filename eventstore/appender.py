"""The one writer: commits whatever is queued, the moment that the last commit ends.

    append() -> queue -> [ all that is queued ] -> GroupCommit.commit -> answer each caller

1. A caller's request joins a bounded queue, or is refused at once (`Overloaded`).
2. The writer takes everything that is queued, up to a cap, and commits it as one group. There is
   no timer: an idle store answers after one commit, a busy one makes larger groups. When more is
   queued than fits, streams take turns (`eventstore.queueing`).
3. When the connection breaks, the writer commits the same group again under a new one: ids tell
   what happened the first time. A request whose deadline passes meanwhile gets `OutcomeUnknown`
   if its commit may have happened, `Unavailable` if it cannot have.
4. When the database refuses the group's data, or something unexpected happens, each request is
   committed alone, so that only the one at fault fails. Till then they are at the queue's front,
   with their deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from eventstore.decision import Outcome
from eventstore.queueing import FairQueue
from eventstore.sizes import bytes_of
from eventstore.store import Appended, AppendRequest
from kernel.errors import (
    ContractViolation,
    LeaseLost,
    Misconfigured,
    OutcomeUnknown,
    Overloaded,
    PenstockError,
    Standby,
    StorageFull,
    StoreDiverged,
    Unavailable,
)
from kernel.positions import Position

_log = logging.getLogger("penstock.eventstore")


class GroupCommit(Protocol):
    """Makes groups durable. One caller at a time."""

    async def commit(self, requests: Sequence[AppendRequest]) -> tuple[list[Outcome], Position]:
        """Decide and commit a group; return its answers, in order, and the head afterwards.

        Raises `Unavailable` when certainly nothing was committed, `OutcomeUnknown` when that
        cannot be told, `ContractViolation` when the group as a whole was refused for its data.
        """
        ...

    async def prepare(self) -> Position:
        """Become, or remain, the one writer; return the head.

        Raises `Standby` while another writer holds the lease, `Unavailable` when nobody answers,
        `StoreDiverged`, from then on for ever, when events are gone that were there.
        """
        ...

    async def close(self) -> None:
        """Let go of the lease, so that another writer can follow at once."""
        ...


class AppendObserver(Protocol):
    """Told what the writer does, for metrics. Must be quick and must not raise."""

    def committed(self, *, requests: int, events: int, head: int) -> None:
        """A group was committed: so many requests were accepted, others are not counted."""
        ...

    def queued(self, events: int) -> None:
        """So many events are waiting or being committed now."""
        ...


class NoObserver:
    """Watches nothing."""

    def committed(self, *, requests: int, events: int, head: int) -> None:
        """Do nothing."""

    def queued(self, events: int) -> None:
        """Do nothing."""


class HeadListener(Protocol):
    """Is told about each new head, in order."""

    def advance(self, head: Position) -> None:
        """The store's last position is `head` now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimits:
    """What the writer takes on. `answer_s`: how long a caller waits at most; `standby_s`: how long
    one waits that comes while another process is the writer.
    """

    queue_events: int = 20_000
    queue_bytes: int = 64 * 1024 * 1024
    group_events: int = 2_000
    answer_s: float = 15.0
    standby_s: float = 15.0
    retry_s: float = 0.1
    idle_s: float = 2.0


class _Queued:
    """A request, its size, and who waits for the answer."""

    __slots__ = (
        "alone",
        "answer",
        "deadline",
        "events",
        "request",
        "size",
        "streams",
        "turn",
        "uncertain",
    )

    def __init__(self, request: AppendRequest, answer: asyncio.Future[Appended], deadline: float):
        self.request = request
        self.answer = answer
        self.deadline = deadline
        self.uncertain = False
        self.alone = False
        self.turn = 0
        self.streams = tuple({append.stream for append in request.appends})
        self.events = sum(len(append.events) for append in request.appends)
        self.size = sum(bytes_of(event) for append in request.appends for event in append.events)


class Appender:
    """The queue and the loop over it. Start it once; `append` may be called from many tasks."""

    def __init__(
        self,
        group: GroupCommit,
        head: HeadListener,
        *,
        limits: AppendLimits | None = None,
        observer: AppendObserver | None = None,
    ) -> None:
        self._group = group
        self._head = head
        self._limits = limits or AppendLimits()
        self._observer = observer or NoObserver()
        self._queue: FairQueue[_Queued] = FairQueue(
            max_events=self._limits.queue_events, max_bytes=self._limits.queue_bytes
        )
        self._group_now: list[_Queued] = []
        self._work = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._standby = False
        self.trouble: str | None = "starting"

    def start(self) -> None:
        """Start the writer's loop."""
        self._task = asyncio.create_task(self._run(), name="appender")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Refuse new requests, commit what is queued, let go of the lease."""
        self._stopping = True
        self._work.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.answer_s):
                    await asyncio.shield(self._task)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._give_up(self._queue.take_all(), Unavailable("the service is stopping"))
        await self._group.close()

    async def append(self, request: AppendRequest) -> Appended:
        """Queue a request and wait for its answer. Errors are those of `EventStore.append`."""
        return await self.enqueue(request)

    def enqueue(self, request: AppendRequest) -> asyncio.Future[Appended]:
        """Queue a request; return its answer to come, which raises as `append` does.

        Raises `Overloaded` and `Unavailable` at once; nothing is queued then.
        """
        if self._stopping:
            raise Unavailable("the service is stopping", remedy="Retry: another one takes over.")
        if self._task is not None and self._task.done():
            raise Unavailable("the writer has ended", remedy="Restart the service.")
        loop = asyncio.get_running_loop()
        wait_s = self._limits.standby_s if self._standby else self._limits.answer_s
        queued = _Queued(request, loop.create_future(), loop.time() + wait_s)
        if not self._queue.offer(queued):
            waiting = f"{self._queue.events} events are waiting to be committed"
            raise Overloaded(waiting, retry_after_s=1)
        self._observer.queued(self._queue.events)
        self._work.set()
        return queued.answer

    async def _run(self) -> None:
        while not (self._stopping and not self._queue):
            try:
                await self._step()
            except Exception as error:
                # A defect of ours must not stop all appends for good.
                _log.exception("the writer failed and goes on")
                self.trouble = f"{type(error).__name__}, see the log"
                self._abandon()
                self._expire(self.trouble)
                await asyncio.sleep(self._limits.retry_s)

    async def _step(self) -> None:
        await self._ready()
        if not self._queue:
            if self._stopping:  # Since it was made ready: nobody wakes it once more.
                return
            self._work.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._limits.idle_s):
                    await self._work.wait()
            return
        # Those of a group that was refused have lower turns than all that came after them.
        alone = next(iter(self._queue)).alone
        self._group_now = self._queue.take(1 if alone else self._limits.group_events)
        await self._commit(self._group_now)
        self._group_now = []

    def _abandon(self) -> None:
        """Answer those whose group cannot be finished: what became of it is not known."""
        group, self._group_now = self._group_now, []
        for queued in group:
            queued.uncertain = True
            if not queued.answer.done():
                self._give_up([queued], Unavailable("the writer failed"))

    def _ended(self, _task: asyncio.Task[None]) -> None:
        """Leave nobody waiting when the loop ends, however it does."""
        self.trouble = self.trouble or "the writer has ended"
        self._abandon()
        self._give_up(self._queue.take_all(), Unavailable("the writer has ended"))

    async def _ready(self) -> None:
        """Hold the lease. While that fails, only requests past their deadline are answered."""
        while True:
            try:
                async with asyncio.timeout(self._limits.answer_s):
                    self._head.advance(await self._group.prepare())
            except (Unavailable, Misconfigured, TimeoutError) as error:
                self.trouble = _told(error)
                self._standby = isinstance(error, Standby)
                self._expire(self.trouble)
                if self._stopping:
                    return
                await asyncio.sleep(self._limits.retry_s)
            except StoreDiverged as error:
                # Until a person has looked: positions that readers know stand for other events.
                self.trouble = error.message
                self._give_up(self._queue.take_all(), error)
                if self._stopping:
                    return
                await asyncio.sleep(self._limits.retry_s)
            else:
                self._standby = False
                self.trouble = None
                return

    async def _commit(self, group: list[_Queued]) -> None:
        """Commit a group; put it back to the queue's front when that has to be tried again."""
        try:
            async with asyncio.timeout(self._limits.answer_s):
                outcomes, head = await self._group.commit([queued.request for queued in group])
        except ContractViolation as error:
            self._part(group, error)
        except (Unavailable, LeaseLost, TimeoutError) as error:
            await self._try_again(group, error)
        except PenstockError as error:
            self._give_up(group, error)
        except Exception as error:
            # A defect of ours: whichever request brings it about shall fail alone.
            _log.exception("committing a group failed")
            failed = ContractViolation(f"this append cannot be committed: {error!r}")
            self._part(group, failed)
        else:
            self._head.advance(head)
            self._answer(group, outcomes, head)

    def _part(self, group: list[_Queued], error: PenstockError) -> None:
        """Have each request of a group that was refused committed alone; fail one that was."""
        if len(group) == 1:
            self._give_up(group, error)
            return
        for queued in group:
            queued.alone = True
        self._queue.put_back(group)

    async def _try_again(self, group: list[_Queued], error: Exception) -> None:
        if isinstance(error, StorageFull):
            self._give_up(group, error)
            return
        self.trouble = str(error) or "PostgreSQL does not answer in time"
        for queued in group:
            queued.uncertain |= isinstance(error, OutcomeUnknown | TimeoutError)
        self._queue.put_back(group)
        self._expire(self.trouble)
        if self._stopping:
            self._give_up(
                self._queue.take_all(), Unavailable(f"the service is stopping: {self.trouble}")
            )
        await asyncio.sleep(self._limits.retry_s)

    def _answer(self, group: list[_Queued], outcomes: list[Outcome], head: Position) -> None:
        accepted = events = 0
        for queued, outcome in zip(group, outcomes, strict=True):
            self._settle(queued)
            if isinstance(outcome, Appended) and not outcome.repeated:
                accepted += 1
                events += queued.events
            if queued.answer.done():
                continue
            if isinstance(outcome, PenstockError):
                queued.answer.set_exception(outcome)
            else:
                queued.answer.set_result(outcome)
        if accepted:
            self._observer.committed(requests=accepted, events=events, head=head)

    def _expire(self, trouble: str) -> None:
        now = asyncio.get_running_loop().time()
        late = [queued for queued in self._queue if queued.deadline <= now]
        if late:
            self._queue.put_back([q for q in self._queue.take_all() if q.deadline > now])
            kind = Standby if self._standby else Unavailable
            self._give_up(late, kind(f"not committed in time: {trouble}"))

    def _give_up(self, group: Sequence[_Queued], error: PenstockError) -> None:
        for queued in group:
            self._settle(queued)
            if not queued.answer.done():
                queued.answer.set_exception(
                    OutcomeUnknown(f"the commit may have happened: {error.message}")
                    if queued.uncertain
                    else error
                )

    def _settle(self, queued: _Queued) -> None:
        self._queue.settle(queued)
        self._observer.queued(self._queue.events)


def _told(error: Exception) -> str:
    """Say why the writer cannot begin, and what a person must do where only a person can."""
    if isinstance(error, Misconfigured):
        return f"{error.message} | fix: {error.remedy}"
    return str(error) or "PostgreSQL does not answer in time"
