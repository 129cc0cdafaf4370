"""Driver: paced appends over HTTP and subscribers (SSE), all in one process with one clock."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import cast
from urllib.parse import urlsplit

import uvloop

from benchmarks.eventstore.http_load import body_of
from benchmarks.eventstore.seed import CATEGORY
from benchmarks.peers.closed_loop import Work, report, work
from benchmarks.peers.delivery import DRAIN_S, delivered

_STREAMS_PER_CLIENT = 100
_SUBSCRIBE = "/v1/events/subscribe?after=end"
_LIVE_S = 120.0


class Subscriber(asyncio.Protocol):
    """Notes when each position arrives. `live` is set once the feed has caught up."""

    def __init__(self, host: str) -> None:
        self.seen: dict[int, float] = {}
        self.live = asyncio.Event()
        self._host = host
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = f"GET {_SUBSCRIBE} HTTP/1.1\r\nHost: {self._host}\r\n\r\n"
        cast(asyncio.Transport, transport).write(request.encode())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"id: "):
                self.seen.setdefault(int(line[4:]), now)
            elif line.startswith(b"event: caught-up"):
                self.live.set()


class Client(asyncio.Protocol):
    """One connection that appends when it is told to; `answer` gives position and time."""

    def __init__(self, host: str, number: int, body: str) -> None:
        self._number, self._count = number, 0
        self._rest = (
            f" HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, float]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def append(self) -> asyncio.Future[tuple[int, float]]:
        """Send one event; the result is its position and when that was known here."""
        self._count += 1
        stream = self._number * _STREAMS_PER_CLIENT + self._count % _STREAMS_PER_CLIENT
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(f"POST /v1/streams/{CATEGORY}-{stream}".encode() + self._rest)
        return self._answer

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator or not body.endswith(b"}") or self._answer is None:
            return
        self._buffer = b""
        if not head.startswith(b"HTTP/1.1 201"):
            self._answer.set_exception(SystemExit(f"an append failed: {body.decode()}"))
            return
        self._answer.set_result((json.loads(body)["last_position"], now))


async def deliver(asked: Work) -> dict[str, float]:
    """Append at the asked rate; return how long after its answer each event was delivered."""
    parts = urlsplit(asked.address)
    host, port = str(parts.hostname), int(parts.port or 80)
    loop = asyncio.get_running_loop()
    subscribers = []
    for _ in range(asked.subscribers):
        _, subscriber = await loop.create_connection(lambda: Subscriber(parts.netloc), host, port)
        subscribers.append(subscriber)
    clients: asyncio.Queue[Client] = asyncio.Queue()
    for number in range(asked.clients):
        made = partial(Client, parts.netloc, number, body_of(asked))
        _, client = await loop.create_connection(made, host, port)
        clients.put_nowait(client)
    async with asyncio.timeout(_LIVE_S):
        for each in subscribers:
            await each.live.wait()
    sent: dict[int, float] = {}
    acknowledged: dict[int, float] = {}

    async def append(client: Client) -> None:
        begun = time.perf_counter()
        position, answered = await client.append()
        sent[position], acknowledged[position] = begun, answered
        clients.put_nowait(client)

    cpu, begun = time.process_time(), time.perf_counter()
    async with asyncio.TaskGroup() as appends:
        for number in range(int(asked.rate * asked.seconds)):
            due = begun + number / asked.rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            if time.perf_counter() - begun > asked.seconds:
                break
            appends.create_task(append(await clients.get()))
    deadline = time.perf_counter() + DRAIN_S
    while time.perf_counter() < deadline and any(
        acknowledged.keys() - each.seen.keys() for each in subscribers
    ):
        await asyncio.sleep(0.01)
    cpu_s = time.process_time() - cpu
    ended = time.perf_counter()
    figures = delivered(
        _for_each(sent, asked.subscribers),
        _for_each(acknowledged, asked.subscribers),
        {(at, n): seen for n, each in enumerate(subscribers) for at, seen in each.seen.items()},
        begun=begun,
        ended=ended,
    )
    return figures | {"client_cpu_us_per_event": cpu_s * 1e6 / len(acknowledged)}


def _for_each(times: Mapping[int, float], subscribers: int) -> dict[tuple[int, int], float]:
    return {(at, n): when for at, when in times.items() for n in range(subscribers)}


if __name__ == "__main__":
    report(uvloop.run(deliver(work())))
