"""Appends events at a steady rate: `python -m benchmarks.projections.load URL TOKEN RATE SECONDS`.

Each request has `BATCH` events of one stream. A request that is late is not made up for: what was
sent is printed, as one JSON document.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

from benchmarks.projections.queries import CATEGORY, ITEMS, SHOPS, TYPE

BATCH, CONNECTIONS, STREAMS = 20, 4, 5_000
GRACE_S = 60.0


def main(url: str, token: str, rate: float, seconds: float) -> dict[str, float]:
    """Append, and return how many events were sent, and at which rate."""
    began = time.time()
    sent = [0] * CONNECTIONS
    failures: list[str] = []

    def run(number: int) -> None:
        try:
            for body, stream in _bodies(random.Random(number), rate / CONNECTIONS, seconds):
                _post(connections[number], url, token, stream, body)
                sent[number] += BATCH
        except Exception as error:
            failures.append(f"{type(error).__name__}: {error}")

    parts = urlsplit(url)
    connections = [
        http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=GRACE_S)
        for _ in range(CONNECTIONS)
    ]
    threads = [threading.Thread(target=run, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread, connection in zip(threads, connections, strict=True):
        thread.join()
        with closing(connection):
            pass
    if failures:
        raise SystemExit(failures[0])
    ended = time.time()
    return {
        "began": began,
        "ended": ended,
        "events": float(sum(sent)),
        "events_per_s": sum(sent) / (ended - began),
    }


def _bodies(dice: random.Random, rate: float, seconds: float) -> Iterator[tuple[bytes, str]]:
    """Yield a request whenever one is due."""
    pause, began = BATCH / rate, time.perf_counter()
    for number in range(round(seconds / pause)):
        time.sleep(max(0.0, began + number * pause - time.perf_counter()))
        if time.perf_counter() > began + seconds:
            return
        events = [
            {
                "type": TYPE,
                "data": {
                    "item": dice.randrange(ITEMS),
                    "shop": dice.randrange(SHOPS),
                    "amount": dice.randrange(10_000) / 100,
                },
            }
            for _ in range(BATCH)
        ]
        yield json.dumps({"events": events}).encode(), f"{CATEGORY}-{dice.randrange(STREAMS)}"


def _post(
    connection: http.client.HTTPConnection, url: str, token: str, stream: str, body: bytes
) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    connection.request("POST", f"/v1/streams/{stream}", body, headers)
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 201:
        raise RuntimeError(f"{url} answered {answer.status}: {said[:300]!r}")


if __name__ == "__main__":
    _, url_, token_, rate_, seconds_ = sys.argv
    print(json.dumps(main(url_, token_, float(rate_), float(seconds_))))
