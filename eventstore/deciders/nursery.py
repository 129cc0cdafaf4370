"""The process that loads users' code once, and forks one process for each call at a time.

    service --socket--> nursery (loads the code, runs none of it) --fork--> process of calls

A fork takes milliseconds, so that a call which does not end is killed with its process, and the
next one finds a fresh process with the same code, whatever the files have become. The nursery
kills its own children: nobody else knows for sure whose number a process has.
"""

from __future__ import annotations

import errno
import faulthandler
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from eventstore.deciders.frames import PID, packed, receive, send
from eventstore.deciders.tasks import Code
from eventstore.deciders.workers import failure, perform
from kernel.errors import DeciderStopped, PenstockError

_log = logging.getLogger("penstock.deciders")
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
        answer = packed(told)
    except PenstockError as error:
        send(control, error)
        return
    except Exception as error:
        send(control, failure(error, "the workspace's code"))
        return
    signal.alarm(0)
    control.sendall(answer)
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    try:
        with suppress(ConnectionError):  # The service is gone.
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
        if not sockets:
            control.sendall(PID.pack(-errno.EMFILE))
            continue
        (number,) = sockets
        try:
            pid = os.fork()
        except OSError as error:
            os.close(number)
            control.sendall(PID.pack(-(error.errno or errno.EAGAIN)))
            continue
        if pid == 0:
            _live(control, number, code, memory)
        os.close(number)
        children.add(pid)
        control.sendall(PID.pack(pid))


def _live(control: socket.socket, number: int, code: Code, memory: int) -> NoReturn:
    """Be a child. Whatever happens ends here: to kill children is the nursery's, not a child's."""
    try:
        control.close()
        with socket.socket(fileno=number) as calls:
            _answer(calls, code, memory)
    except BaseException as error:
        _log.error("a process of the workspace's code failed", exc_info=error)
    finally:
        os._exit(0)


def _answer(calls: socket.socket, code: Code, memory: int) -> None:
    """Do one task after the other until the service closes the socket."""
    os.nice(_NICER)
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, most))
    with suppress(EOFError, OSError):
        while True:
            try:
                answer = _answered(calls, code)
            except MemoryError:
                answer = b""  # The error holds what filled the memory, as long as it is handled.
            calls.sendall(answer or _short(memory))


def _answered(calls: socket.socket, code: Code) -> bytes:
    """Wait for a task and do it. Raises `MemoryError`, and what the end of the socket raises."""
    task = receive(calls)
    try:
        return packed((perform(task, code), None))
    except MemoryError:
        raise
    except PenstockError as error:
        return packed((None, error))
    except BaseException as error:  # An answer may be of anything.
        return packed((None, failure(error, task.of)))


def _short(memory: int) -> bytes:
    """Answer for a call that needed too much: the service knows whose it was, and kills."""
    of, cause = "the workspace's code", f"needed more than {memory // 2**20} MiB"
    return packed((None, DeciderStopped(f"{of} {cause}", of=of, cause=cause)))
