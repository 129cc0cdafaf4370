"""Drives a store with clients that each send the next request when the last one is answered.

Standard library only: it runs in the peers' environment too.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

Call = Callable[[], int]
"""Does one request and returns how many events it was about, 0 when there was nothing to do."""

STREAMS = 1_000
"""Appends go to so many streams, in turns: soon all of them exist, as those of living entities."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a driver is asked to do: `line` is append, read or deliver.

    `address` is a DSN or a URL. `batch` counts the events of one append, `rate` the appends per
    second of `deliver`, `subscribers` who gets each of its events. The first `warm_s` seconds are
    not measured.
    """

    line: str
    address: str
    data: str
    clients: int = 1
    batch: int = 1
    streams: int = STREAMS
    rate: float = 0.0
    subscribers: int = 1
    seconds: float = 5.0
    warm_s: float = 1.0


def work() -> Work:
    """Read the work from the command line."""
    return Work(**json.loads(sys.argv[1]))


def report(figures: dict[str, float]) -> None:
    """Print figures as the harness reads them."""
    print(json.dumps(figures))


@dataclass(slots=True)
class Tally:
    """What was done: `latencies` in seconds, of measured calls only; `all_events` of all."""

    latencies: list[float] = field(default_factory=list)
    events: int = 0
    all_events: int = 0
    cpu_s: float = 0.0

    def figures(self, seconds: float) -> dict[str, float]:
        """Return rates and latencies. Raises `SystemExit` when nothing was done."""
        if not self.latencies:
            raise SystemExit("no request was answered in time")
        ordered = sorted(self.latencies)
        return {
            "events_per_s": self.events / seconds,
            "p50_ms": percentile(ordered, 50) * 1000,
            "p99_ms": percentile(ordered, 99) * 1000,
            "client_cpu_us_per_event": self.cpu_s * 1e6 / max(1, self.all_events),
            "all_events": self.all_events,
        }


def percentile(ordered: list[float], percent: float) -> float:
    """Return a percentile of sorted values, the nearest one below."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def run_threads(asked: Work, client: Callable[[int], Call]) -> dict[str, float]:
    """Let `asked.clients` threads call for the asked time; `client(n)` prepares the n-th one."""
    tallies = [Tally() for _ in range(asked.clients)]
    calls = [client(number) for number in range(asked.clients)]
    failures: list[BaseException] = []
    begun = time.perf_counter()
    measured_from, until = begun + asked.warm_s, begun + asked.warm_s + asked.seconds

    def loop(call: Call, tally: Tally) -> None:
        try:
            while (sent := time.perf_counter()) < until:
                events = call()
                answered = time.perf_counter()
                tally.all_events += events
                if sent >= measured_from and answered <= until:
                    tally.events += events
                    tally.latencies.append(answered - sent)
        except (Exception, SystemExit) as error:
            failures.append(error)

    cpu = time.process_time()
    threads = [
        threading.Thread(target=loop, args=pair, daemon=True)
        for pair in zip(calls, tallies, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise SystemExit(f"a request failed: {failures[0]!r}")
    total = Tally(cpu_s=time.process_time() - cpu)
    for tally in tallies:
        total.latencies += tally.latencies
        total.events += tally.events
        total.all_events += tally.all_events
    return total.figures(asked.seconds)
