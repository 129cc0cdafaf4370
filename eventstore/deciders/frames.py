"""Messages between the service and the processes of users' code: a length, then a pickle.

Both ends are processes of one service. What comes back are plain values and our own errors.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from typing import Any

from kernel.errors import DeciderFailed

_LENGTH = struct.Struct("!Q")
PID = struct.Struct("!q")
"""A number on the control socket: a process to kill, or 0 to ask for a new one.

The answer is the new process, or the number of an error below 0.
"""
_PIECE = 2**16


def packed(message: object) -> bytes:
    """Return a message as it goes over a socket."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


def send(to: socket.socket, message: object) -> None:
    """Send a message and wait until it is gone."""
    to.sendall(packed(message))


def receive(from_: socket.socket) -> Any:
    """Return the next message.

    Raises `EOFError` or `OSError` when the other end is closed; `DeciderFailed` and `MemoryError`
    for a message that cannot be read, which is gone then.
    """
    (length,) = _LENGTH.unpack(_exactly(from_, _LENGTH.size))
    try:
        found = bytearray(length)
    except MemoryError:
        while length:
            length -= len(_exactly(from_, min(length, _PIECE)))
        raise
    return _unpacked(_read_into(found, from_))


async def exchange(over: socket.socket, request: bytes) -> Any:
    """Send a message over a socket that does not block, and return the answer.

    Raises `EOFError` or `OSError` when the other end is closed, `DeciderFailed` for an answer that
    cannot be read.
    """
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(over, request)
    (length,) = _LENGTH.unpack(await exactly(over, _LENGTH.size))
    return _unpacked(await exactly(over, length))


async def exactly(from_: socket.socket, length: int) -> bytearray:
    """Return so many bytes of a socket that does not block. Raises `EOFError`."""
    loop = asyncio.get_running_loop()
    found = bytearray(length)
    view = memoryview(found)
    while view:
        count = await loop.sock_recv_into(from_, view)
        if not count:
            raise EOFError
        view = view[count:]
    return found


def _exactly(from_: socket.socket, length: int) -> bytearray:
    return _read_into(bytearray(length), from_)


def _read_into(found: bytearray, from_: socket.socket) -> bytearray:
    view = memoryview(found)
    while view:
        count = from_.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return found


def _unpacked(body: bytearray) -> Any:
    try:
        return pickle.loads(body)
    except MemoryError:
        raise
    except Exception as error:  # Classes of users' code exist where it was loaded alone.
        raise DeciderFailed(
            f"what the workspace's code gave cannot be read: {type(error).__name__}: {error}",
            remedy="Let deciders and upcasters give values of Python's own classes.",
        ) from error
