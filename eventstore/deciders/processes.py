"""Users' code in processes of its own: several calls at a time, each with a deadline.

A call that does not end is killed with its process, and says whose code it was. Others go on:
one decider never has all processes, and for `SUSPECTED_S` after such a call only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from eventstore.deciders.frames import PID, exactly, exchange, packed, receive
from eventstore.deciders.nursery import LOAD_S
from eventstore.deciders.tasks import DeciderTask
from kernel.errors import DeciderStopped, Overloaded, PenstockError, Unavailable

_log = logging.getLogger("penstock.deciders")
MAX_WAITING = 1_000
SUSPECTED_S = 300.0
_WRITE_S = 0.05
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedDecider:
    """Calls of one decider that were killed: how often, why the last one, and when."""

    count: int
    cause: str
    at: float


@dataclass(slots=True, kw_only=True)
class _Process:
    """A process that answers one call after the other."""

    pid: int
    calls: socket.socket


class Processes:
    """All processes of one version of the code. Make it with `begin`, end it with `close`."""

    def __init__(
        self,
        nursery: subprocess.Popen[bytes],
        control: socket.socket,
        told: Any,
        *,
        most: int,
        limit_s: float,
        killed: Callable[[str], None],
    ) -> None:
        self.told = told
        """What the code is, as the process said that loaded it."""
        self._nursery = nursery
        self._control = control
        self._limit_s = limit_s
        self._tell_killed = killed
        self._most = most
        self._idle: list[_Process] = []
        self._waiting = 0
        self._stopped: dict[str, StoppedDecider] = {}
        self._forking = asyncio.Lock()
        self._free = asyncio.Semaphore(most)
        self._shares: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(max(1, most - 1))
        )
        self._alone: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(1))

    @classmethod
    def begin(
        cls,
        command: Sequence[str],
        *,
        most: int,
        limit_s: float,
        killed: Callable[[str], None],
    ) -> Processes:
        """Start a process that loads the code, and wait until it has; for any thread.

        `command` gets the number of a socket as its last word; `killed` is told of whom a call was
        killed. Raises what loading raises; `DeciderStopped` when it does not end within `LOAD_S`;
        `Unavailable` when this machine has no room for a process.
        """
        nursery, ours = _begun(command)
        try:
            ours.settimeout(LOAD_S)
            told = receive(ours)
            if isinstance(told, PenstockError):
                raise told
        except BaseException as error:
            nursery.kill()
            nursery.wait()
            ours.close()
            if isinstance(error, (EOFError, OSError)):
                late = isinstance(error, TimeoutError)
                cause = f"took longer than {LOAD_S} s" if late else "ended its process"
                raise DeciderStopped(
                    f"loading the workspace's code {cause}", of="the workspace's code", cause=cause
                ) from None
            raise
        ours.setblocking(False)
        return cls(nursery, ours, told, most=most, limit_s=limit_s, killed=killed)

    @property
    def lost(self) -> bool:
        """Whether the process that held the code is gone, so that no call can be made any more."""
        return self._nursery.poll() is not None

    @property
    def stopped(self) -> Mapping[str, StoppedDecider]:
        """Whose calls were killed within the last minutes, by the name that messages have."""
        since = time.monotonic() - SUSPECTED_S
        return {of: each for of, each in self._stopped.items() if each.at > since}

    async def run(self, task: DeciderTask[T]) -> T:
        """Have a task done, see `Workers.run`. A caller that goes away ends the call."""
        if self._waiting >= MAX_WAITING:
            raise Overloaded(f"{self._waiting} commands are waiting for a process", retry_after_s=1)
        self._waiting += 1
        async with contextlib.AsyncExitStack() as turns:
            try:
                for turn in self._turns(task.of):
                    await turns.enter_async_context(turn)
            finally:
                self._waiting -= 1
            answer: T = await self._asked(task)
            return answer

    def retire(self) -> None:
        """Let idle processes go: newer code took this one's place. Calls under way may go on."""
        while self._idle:
            self._kill(self._idle.pop())

    def close(self) -> None:
        """End all processes."""
        self.retire()
        self._control.close()
        try:
            self._nursery.wait(5)
        except subprocess.TimeoutExpired:
            self._nursery.kill()
            self._nursery.wait()

    def _turns(self, of: str) -> list[AbstractAsyncContextManager[Any]]:
        turns: list[AbstractAsyncContextManager[Any]] = [self._shares[of], self._free]
        return [self._alone[of], *turns] if of in self.stopped else turns

    async def _asked(self, task: DeciderTask[T]) -> T:
        process = self._idle.pop() if self._idle else await self._forked()
        try:
            async with asyncio.timeout(self._limit_s):
                result, error = await exchange(process.calls, packed(task))
        except TimeoutError:
            try:
                await _show_stack(process)
            finally:  # The caller may go away meanwhile.
                killed = self._killed(process, task.of, f"took longer than {self._limit_s:g} s")
            raise killed from None
        except (EOFError, OSError):
            raise self._killed(process, task.of, "ended its process") from None
        except BaseException:
            self._kill(process)
            raise
        if isinstance(error, DeciderStopped):
            raise self._killed(process, task.of, str(error.fields["cause"]))
        self._idle.append(process)
        if error is not None:
            raise error
        answer: T = result
        return answer

    async def _forked(self) -> _Process:
        """Fork. What is forked for a caller that goes away meanwhile is kept for the next one."""
        forking = asyncio.create_task(self._fork(), name="fork for users' code")
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(self._spare)
            raise

    def _spare(self, forking: asyncio.Task[_Process]) -> None:
        if not forking.cancelled() and forking.exception() is None:
            self._idle.append(forking.result())

    async def _fork(self) -> _Process:
        with contextlib.ExitStack() as unused:
            try:
                ours, theirs = socket.socketpair()
                unused.enter_context(ours)
                ours.setblocking(False)
                async with self._forking:
                    with theirs:
                        socket.send_fds(self._control, [PID.pack(0)], [theirs.fileno()])
                    (pid,) = PID.unpack(await exactly(self._control, PID.size))
            except (EOFError, OSError) as error:
                ended = self._nursery.poll()
                what = f"ended with {ended}" if ended is not None else f"does not answer: {error}"
                raise Unavailable(f"the process of the workspace's code {what}") from error
            if pid < 0:
                raise Unavailable(f"no process for the workspace's code: {os.strerror(-pid)}")
            unused.pop_all()
        return _Process(pid=pid, calls=ours)

    def _killed(self, process: _Process, of: str, cause: str) -> DeciderStopped:
        self._kill(process)
        before = self._stopped.get(of)
        count = 1 if before is None else before.count + 1
        self._stopped[of] = StoppedDecider(count=count, cause=cause, at=time.monotonic())
        self._tell_killed(of)
        _log.error("%s %s: its process was killed", of, cause)
        return DeciderStopped(f"{of} {cause}", of=of, cause=cause)

    def _kill(self, process: _Process) -> None:
        process.calls.close()
        with contextlib.suppress(OSError):  # Without a nursery its children end by themselves.
            self._control.send(PID.pack(process.pid))


def _begun(command: Sequence[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the process that loads the code. Return it with the socket to talk to it."""
    with contextlib.ExitStack() as unused:
        try:
            ours, theirs = map(unused.enter_context, socket.socketpair())
            nursery = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(f"no process for the workspace's code: {error}") from error
        unused.pop_all()
    theirs.close()
    return nursery, ours


async def _show_stack(process: _Process) -> None:
    """Let a process write into the log where it is, before it is killed."""
    with contextlib.suppress(OSError):
        os.kill(process.pid, signal.SIGUSR1)
        await asyncio.sleep(_WRITE_S)
