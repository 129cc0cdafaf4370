"""Users' code runs here: off the event loop, under a time limit, its errors told by file and line.

Threads, not processes: states would have to be copied both ways for every command. A thread cannot
be killed, so code that hangs keeps its thread and some of the processor; a fresh one takes its
place, `MAX_HUNG` times, and then commands are refused until a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sysconfig
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kernel.errors import DeciderFailed, Overloaded, PenstockError

_log = logging.getLogger("penstock.deciders")
T = TypeVar("T")
_NOT_THEIRS = (
    str(Path(__file__).parent),
    "<",
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)
MAX_HUNG = 8
MAX_WAITING = 1_000


class _Job:
    """Work, and who waits for it."""

    __slots__ = ("answer", "left", "loop", "work")

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work
        self.loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Any] = self.loop.create_future()
        self.left = False


class Workers:
    """A few threads for all deciders of a service. Make it inside the event loop."""

    def __init__(self, *, threads: int = 4, limit_s: float = 5.0) -> None:
        self.limit_s = limit_s
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._free = asyncio.Semaphore(threads)
        self._waiting = 0
        self._hung = 0
        self._threads = threads
        for _ in range(threads):
            self._begin()

    @property
    def hung(self) -> int:
        """Calls that took too long and have not come back; their threads are lost so far."""
        return self._hung

    async def run(self, work: Callable[[], T], *, of: str, limit_s: float | None = None) -> T:
        """Return what `work()` returns. `of` names it in messages.

        Raises what `work` raises of our own errors; `DeciderFailed` for every other error, with
        the line, and when it takes longer than `limit_s` (that of all, unless given); `Overloaded`
        when too many wait.
        """
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{self._waiting} commands are waiting for a thread", retry_after_s=1)
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            if self._hung >= MAX_HUNG:
                raise DeciderFailed(f"{self._hung} calls of deciders hang in this service")
            result: T = await self._submit(_Job(work), of, limit_s or self.limit_s)
            return result
        finally:
            self._free.release()

    def close(self) -> None:
        """Let idle threads end; those that hang end with the process."""
        for _ in range(self._threads):
            self._jobs.put(None)

    async def _submit(self, job: _Job, of: str, limit_s: float) -> Any:
        self._jobs.put(job)
        try:
            async with asyncio.timeout(limit_s):
                return await job.answer
        except TimeoutError:
            raise DeciderFailed(f"{of} took longer than {limit_s:g} s") from None
        except _Raised as raised:
            error = raised.error
            if isinstance(error, PenstockError):
                raise error from None
            failed = failure(error, of)
            _log.warning("%s", failed, exc_info=error)
            raise failed from error
        finally:
            if not job.answer.done() or job.answer.cancelled():
                # Its thread is busy for as long as it likes: another takes its place.
                job.left = True
                self._hung += 1
                self._begin()

    def _begin(self) -> None:
        threading.Thread(target=self._serve, name="decider", daemon=True).start()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = job.work()
            except BaseException as raised:  # Users' code may even call sys.exit.
                error = raised
            with contextlib.suppress(RuntimeError):  # The loop may be closed by now.
                job.loop.call_soon_threadsafe(self._answer, job, result, error)

    def _answer(self, job: _Job, result: Any, error: BaseException | None) -> None:
        if job.left:
            self._hung -= 1
            self._jobs.put(None)  # One thread too many now.
        elif error is not None:
            job.answer.set_exception(_Raised(error))
        else:
            job.answer.set_result(result)


class _Raised(Exception):
    """Carries an error of users' code through a future, which takes not every kind."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def failure(error: BaseException, of: str) -> DeciderFailed:
    """Say what users' code raised, and at which line of which file."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    what = f"{of}: {type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) and error.filename:
        return DeciderFailed(
            f"{error.filename}:{error.lineno}: {what}", file=error.filename, line=error.lineno
        )
    if not frames:
        return DeciderFailed(what)
    place = (theirs or list(frames))[-1]
    return DeciderFailed(
        f"{place.filename}:{place.lineno}: {what}", file=place.filename, line=place.lineno
    )
