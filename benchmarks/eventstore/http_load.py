"""Driver: appends over HTTP by `wrk` where it is installed, else by bare sockets; NDJSON reads.

The load comes from the same cores as the service, so it must cost little: `wrk` takes about a
tenth of what a Python client takes. What it took is among the figures.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from benchmarks.eventstore.seed import TYPE
from benchmarks.loader import Connection, Requests
from benchmarks.peers.closed_loop import (
    Call,
    Tally,
    Work,
    report,
    run_threads,
    work,
)

SCRIPT = Path(__file__).with_name("append.lua")
NDJSON = "application/x-ndjson"
READ_PATH = "/v1/events?after=0"
_CHUNK_BYTES = 1 << 20


def body_of(asked: Work) -> str:
    """Return the body of each request."""
    return json.dumps({"events": [{"type": TYPE, "data": json.loads(asked.data)}] * asked.batch})


def load_by_wrk(asked: Work, program: str) -> dict[str, float]:
    """Load with wrk, one thread: it is far from its limit."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as body:
        body.write(body_of(asked))
        body.flush()
        warm = _wrk(asked, program, body.name, asked.warm_s)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        seen = _wrk(asked, program, body.name, asked.seconds)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    events = seen["requests"] * asked.batch
    return {
        "events_per_s": events / seen["duration_us"] * 1e6,
        "p50_ms": seen["p50_us"] / 1000,
        "p99_ms": seen["p99_us"] / 1000,
        "client_cpu_us_per_event": cpu_s * 1e6 / events,
        "all_events": events + warm["requests"] * asked.batch,
    }


def _wrk(asked: Work, program: str, body: str, seconds: float) -> dict[str, float]:
    ended = subprocess.run(
        [
            *(program, "-t1", f"-c{asked.clients}", f"-d{max(1, round(seconds))}s"),
            *("-s", SCRIPT, asked.address, "--", body, str(asked.streams)),
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    seen: dict[str, float] = json.loads(ended.stdout.strip().splitlines()[-1])
    if seen["failed"] or not seen["requests"]:
        raise SystemExit(f"{seen['failed']} of {seen['requests']} requests failed")
    return seen


async def load_by_sockets(asked: Work) -> dict[str, float]:
    """Load from this process."""
    warm = await _sockets(asked, asked.warm_s)
    cpu = time.process_time()
    tally = Tally(latencies=await _sockets(asked, asked.seconds))
    tally.events = tally.all_events = len(tally.latencies) * asked.batch
    tally.cpu_s = time.process_time() - cpu
    figures = tally.figures(asked.seconds)
    return figures | {"all_events": tally.all_events + len(warm) * asked.batch}


async def _sockets(asked: Work, seconds: float) -> list[float]:
    parts = urlsplit(asked.address)
    requests = Requests(parts.netloc, body_of(asked), seconds)
    ends = [asyncio.Event() for _ in range(asked.clients)]
    loop = asyncio.get_running_loop()
    for end in ends:
        made = partial(Connection, requests, end)
        await loop.create_connection(made, str(parts.hostname), int(parts.port or 80))
    await asyncio.gather(*(end.wait() for end in ends))
    if requests.failure is not None:
        raise SystemExit(f"an append failed: {requests.failure}")
    return requests.latencies


def reading(asked: Work) -> Call:
    """Read all events as NDJSON, from the start again when the end is reached."""
    connection = http.client.HTTPConnection(urlsplit(asked.address).netloc)
    response: http.client.HTTPResponse | None = None

    def call() -> int:
        nonlocal response
        if response is None:
            connection.request("GET", READ_PATH, headers={"accept": NDJSON})
            response = connection.getresponse()
            kind = response.getheader("content-type") or ""
            if response.status != 200 or not kind.startswith(NDJSON):
                raise SystemExit(f"no NDJSON of all events: {response.status} {kind}")
        chunk = response.read1(_CHUNK_BYTES)
        if not chunk:
            response.close()
            response = None
        return chunk.count(b"\n")

    return call


def read_all(asked: Work) -> dict[str, float]:
    """Return the rate; the latency of a chunk says nothing."""
    figures = run_threads(asked, lambda _number: reading(asked))
    return {name: value for name, value in figures.items() if not name.endswith("_ms")}


def main() -> None:
    asked = work()
    if asked.line == "read":
        report(read_all(asked))
    elif (program := shutil.which("wrk")) is not None:
        report(load_by_wrk(asked, program))
    else:
        report(uvloop.run(load_by_sockets(asked)))


if __name__ == "__main__":
    main()
