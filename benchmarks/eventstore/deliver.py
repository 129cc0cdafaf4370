"""Driver: paced appends over HTTP and subscribers (SSE), all in one process with one clock.

Beside what the subscribers see (`p50_ms`, `p99_ms`), the times of the server alone: from the moment
at which PostgreSQL recorded an event, which is before its commit is on disk, until the kernel had
the answer (`answered_…`), and until it had the event for each subscriber (`edge_…`). `last_…` is
from the answer until it had the event for the last of them: what comes behind a commit.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import urlsplit

import uvloop

from benchmarks.eventstore.http_load import body_of
from benchmarks.eventstore.seed import CATEGORY
from benchmarks.eventstore.stamped import connected
from benchmarks.peers.closed_loop import Work, percentile, report, work
from benchmarks.peers.delivery import DRAIN_S, delivered

_STREAMS_PER_CLIENT = 100
_SUBSCRIBE = "/v1/events/subscribe?after=end"
_LIVE_S = 120.0
_RECORDED = b'"recorded_at":"'


class Subscriber:
    """Notes when each position arrives, here and in the kernel. `live`: the feed has caught up."""

    def __init__(self, recorded: dict[int, float] | None) -> None:
        self.seen: dict[int, float] = {}
        self.stamped: dict[int, float] = {}
        self.live = asyncio.Event()
        self._recorded = recorded
        self._position = 0
        self._rest = b""

    def received(self, data: bytes, stamp: float) -> None:
        """Take what came. Of one subscriber all that events say of their recording is noted."""
        now = time.time()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"id: "):
                self._position = int(line[4:])
                self.seen.setdefault(self._position, now)
                self.stamped.setdefault(self._position, stamp)
            elif line.startswith(b"event: caught-up"):
                self.live.set()
            elif self._recorded is not None and line.startswith(b"data: "):
                _, found, text = line.partition(_RECORDED)
                if found:
                    moment = datetime.fromisoformat(text.partition(b'"')[0].decode())
                    self._recorded[self._position] = moment.timestamp()


class Client:
    """One connection that appends when it is told to."""

    connection: socket.socket

    def __init__(self, host: str, number: int, body: str) -> None:
        self._number, self._count = number, 0
        self._rest = (
            f" HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
        self._buffer = b""
        self._answer: asyncio.Future[tuple[int, float, float]] | None = None

    def append(self) -> asyncio.Future[tuple[int, float, float]]:
        """Send one event; the result is its position, when that was known here, and the stamp."""
        self._count += 1
        stream = self._number * _STREAMS_PER_CLIENT + self._count % _STREAMS_PER_CLIENT
        self._answer = asyncio.get_running_loop().create_future()
        request = f"POST /v1/streams/{CATEGORY}-{stream}".encode() + self._rest
        if self.connection.send(request) != len(request):
            raise SystemExit("the service takes no requests")
        return self._answer

    def received(self, data: bytes, stamp: float) -> None:
        """Take what came."""
        now = time.time()
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator or not body.endswith(b"}") or self._answer is None:
            return
        self._buffer = b""
        if not head.startswith(b"HTTP/1.1 201"):
            self._answer.set_exception(SystemExit(f"an append failed: {body.decode()}"))
            return
        self._answer.set_result((json.loads(body)["last_position"], now, stamp))


async def deliver(asked: Work) -> dict[str, float]:
    """Append at the asked rate; return how long after its answer each event was delivered."""
    parts = urlsplit(asked.address)
    host, port = str(parts.hostname), int(parts.port or 80)
    recorded: dict[int, float] = {}
    subscribers = [Subscriber(None if n else recorded) for n in range(asked.subscribers)]
    for each in subscribers:
        connection = await connected(host, port, each.received)
        connection.send(f"GET {_SUBSCRIBE} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    clients: asyncio.Queue[Client] = asyncio.Queue()
    for number in range(asked.clients):
        client = Client(parts.netloc, number, body_of(asked))
        client.connection = await connected(host, port, client.received)
        clients.put_nowait(client)
    async with asyncio.timeout(_LIVE_S):
        for each in subscribers:
            await each.live.wait()
    sent: dict[int, float] = {}
    acknowledged: dict[int, float] = {}
    answered: dict[int, float] = {}

    async def append(client: Client) -> None:
        begun = time.time()
        position, acknowledged_at, stamp = await client.append()
        sent[position], acknowledged[position] = begun, acknowledged_at
        answered[position] = stamp
        clients.put_nowait(client)

    cpu, begun = time.process_time(), time.time()
    async with asyncio.TaskGroup() as appends:
        for number in range(int(asked.rate * asked.seconds)):
            due = begun + number / asked.rate
            if (wait := due - time.time()) > 0:
                await asyncio.sleep(wait)
            if time.time() - begun > asked.seconds:
                break
            appends.create_task(append(await clients.get()))
    deadline = time.time() + DRAIN_S
    while time.time() < deadline and any(
        acknowledged.keys() - each.seen.keys() for each in subscribers
    ):
        await asyncio.sleep(0.01)
    cpu_s = time.process_time() - cpu
    figures = delivered(
        _for_each(sent, asked.subscribers),
        _for_each(acknowledged, asked.subscribers),
        {(at, n): seen for n, each in enumerate(subscribers) for at, seen in each.seen.items()},
        begun=begun,
        ended=time.time(),
    )
    return (
        figures
        | _after("answered", recorded, [answered])
        | _after("edge", recorded, [each.stamped for each in subscribers])
        | _after("last", answered, [_last([each.stamped for each in subscribers])])
        | {"client_cpu_us_per_event": cpu_s * 1e6 / len(acknowledged)}
    )


def _after(
    name: str, recorded: Mapping[int, float], stamps: list[dict[int, float]]
) -> dict[str, float]:
    took = sorted(
        max(0.0, each[at] - when) for at, when in recorded.items() for each in stamps if at in each
    )
    return {f"{name}_p{percent}_ms": percentile(took, percent) * 1000 for percent in (50, 99)}


def _last(stamps: list[dict[int, float]]) -> dict[int, float]:
    everywhere = set.intersection(*(set(each) for each in stamps))
    return {at: max(each[at] for each in stamps) for at in everywhere}


def _for_each(times: Mapping[int, float], subscribers: int) -> dict[tuple[int, int], float]:
    return {(at, n): when for at, when in times.items() for n in range(subscribers)}


if __name__ == "__main__":
    report(uvloop.run(deliver(work())))
