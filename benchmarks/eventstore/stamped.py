"""Connections whose packets carry the moment at which their sender handed them to the kernel.

A driver that reads a hundred sockets gets to the last of them late. Up to a stamp it is the
server's own work; from there until the driver has read it is the driver's.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

_SO_TIMESTAMPNS: Final = 35
"""Linux: each packet is stamped, over the loopback within its sender's own system call."""
_TIME: Final = struct.Struct("@qq")
_MOST: Final = 64 * 1024

Received = Callable[[bytes, float], None]
"""Takes what came, and the stamp of the last packet of it, in seconds of `time.time`."""


async def connected(host: str, port: int, received: Received) -> socket.socket:
    """Connect, and have what comes told for as long as the other side does not hang up."""
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, (host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    loop.add_reader(connection, partial(_read, loop, connection, received))
    return connection


def _read(loop: asyncio.AbstractEventLoop, connection: socket.socket, received: Received) -> None:
    data, beside, _, _ = connection.recvmsg(_MOST, socket.CMSG_SPACE(_TIME.size))
    if not data:
        loop.remove_reader(connection)
        return
    ((_, _, stamp),) = beside
    seconds, nanoseconds = _TIME.unpack(stamp)
    received(data, seconds + nanoseconds / 1e9)
