"""The process that loads users' code once, and forks one process for each call at a time.

    service --socket--> nursery (loads the code, runs none of it) --fork--> process of calls

A fork takes milliseconds, so that a call which does not end is killed with its process, and the
next one finds a fresh process with the same code, whatever the files have become. The nursery
kills its own children: nobody else knows for sure whose number a process has.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from eventstore.deciders.frames import PID, packed, receive, send
from eventstore.deciders.tasks import Code, Task
from eventstore.deciders.workers import failure, perform
from kernel.errors import DeciderStopped, PenstockError

_NICER = 5
"""Appends come before users' code where there are not processors enough for both."""


LOAD_S = 60
"""How long loading may take; then the process ends, whoever may wait for it."""


def serve(control: socket.socket, load: Callable[[], tuple[Code, object]], *, memory: int) -> None:
    """Load code, tell what it is, and fork until the service closes the socket.

    `load` returns the code and what the service is told of it. Each child may hold so many bytes
    of `memory`.
    """
    signal.alarm(LOAD_S)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # The service ends what it has begun.
    try:
        code, told = load()
    except PenstockError as error:
        send(control, error)
        return
    signal.alarm(0)
    send(control, told)
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    try:
        _fork_and_kill(control, code, memory, children)
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _fork_and_kill(control: socket.socket, code: Code, memory: int, children: set[int]) -> None:
    while True:
        message, sockets, _, _ = socket.recv_fds(control, PID.size, 1)
        if not message:
            return
        (pid,) = PID.unpack(message)
        if pid:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            children.discard(pid)
            continue
        (number,) = sockets
        pid = os.fork()
        if pid == 0:
            control.close()
            with socket.socket(fileno=number) as calls:
                _answer(calls, code, memory)
            os._exit(0)
        os.close(number)
        children.add(pid)
        control.sendall(PID.pack(pid))


def _answer(calls: socket.socket, code: Code, memory: int) -> None:
    """Do one task after the other until the service closes the socket, or memory is short."""
    os.nice(_NICER)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, most))
    with suppress(EOFError, OSError):
        while True:
            answer = _answered(receive(calls), code, memory)
            calls.sendall(answer)


def _answered(task: Task[Any], code: Code, memory: int) -> bytes:
    try:
        return packed((perform(task, code), None))
    except MemoryError:
        cause = f"needed more than {memory // 2**20} MiB"
        return packed((None, DeciderStopped(f"{task.of} {cause}", of=task.of, cause=cause)))
    except PenstockError as error:
        try:
            return packed((None, error))
        except Exception as unpacked:  # Its fields may hold anything.
            return packed((None, failure(unpacked, task.of)))
