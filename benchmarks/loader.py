"""Posts appends over keep-alive connections as fast as answers come, each to a stream of many.

    python -m benchmarks.loader URL TOKEN CONNECTIONS SECONDS BODY

Prints one JSON document: requests per second and latencies. Any answer but 201 ends it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from typing import cast
from urllib.parse import urlsplit

import uvloop

STREAMS = 50_000
GRACE_S = 300


class Connection(asyncio.Protocol):
    """One connection: sends the next request the moment that an answer is complete."""

    def __init__(self, requests: Requests, done: asyncio.Event) -> None:
        self._requests = requests
        self._done = done
        self._sent_at = 0.0
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator or len(body) < self._length(head):
            return
        now = time.perf_counter()
        if not head.startswith(b"HTTP/1.1 201"):
            self._requests.failure = self._buffer.decode(errors="replace")
            self._transport.close()
            return
        self._requests.latencies.append(now - self._sent_at)
        self._buffer = b""
        if now < self._requests.until:
            self._send()
        else:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._done.set()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests.next())

    def _length(self, head: bytes) -> int:
        _, _, rest = head.lower().partition(b"content-length: ")
        return int(rest.partition(b"\r\n")[0])


class Requests:
    """The requests still to be sent, and what was measured."""

    def __init__(self, host: str, body: str, seconds: float, *, token: str = "") -> None:
        self.latencies: list[float] = []
        self.failure: str | None = None
        self.until = time.perf_counter() + seconds
        self._numbers = itertools.count()
        content = body.encode()
        self._rest = (
            f" HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n"
            "Content-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        ).encode() + content

    def next(self) -> bytes:
        """Return the next request."""
        return b"POST /v1/streams/order-%d" % (next(self._numbers) % STREAMS) + self._rest


async def load(
    url: str, token: str, connections: int, seconds: float, body: str
) -> dict[str, float]:
    """Keep `connections` busy for some seconds and return the figures."""
    parts = urlsplit(url)
    requests = Requests(parts.netloc, body, seconds, token=token)
    ends = [asyncio.Event() for _ in range(connections)]
    loop = asyncio.get_running_loop()
    begun = time.perf_counter()
    for end in ends:
        await loop.create_connection(
            lambda end=end: Connection(requests, end), parts.hostname, parts.port
        )
    async with asyncio.timeout(seconds + GRACE_S):
        await asyncio.gather(*(end.wait() for end in ends))
    took = time.perf_counter() - begun
    if requests.failure is not None:
        raise SystemExit(f"an append failed: {requests.failure}")
    cuts = statistics.quantiles(requests.latencies, n=100)
    return {
        "requests_per_s": len(requests.latencies) / took,
        "p50_ms": cuts[49] * 1000,
        "p95_ms": cuts[94] * 1000,
    }


if __name__ == "__main__":
    _url, _token, _connections, _seconds, _body = sys.argv[1:]
    print(json.dumps(uvloop.run(load(_url, _token, int(_connections), float(_seconds), _body))))
