"""How long after its acknowledgement an event reaches a subscriber, at a given rate of appends.

Standard library only: it runs in the peers' environment too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeVar

from benchmarks.peers.closed_loop import Work, percentile

DRAIN_S = 5.0
Place = TypeVar("Place", bound=Hashable)


def run_delivery(
    asked: Work, append: Callable[[int], Callable[[], int]], positions: Iterator[int]
) -> dict[str, float]:
    """Append at `asked.rate` from several threads and note when a subscriber sees each event.

    `append(n)` prepares the n-th client's call, which returns the position of its event once that
    is acknowledged. `positions` yields what the subscriber is given, without end; it is read by a
    thread that dies with the process. A store that cannot keep the pace makes fewer appends.
    """
    sent: dict[int, float] = {}
    acknowledged: dict[int, float] = {}
    seen: dict[int, float] = {}
    calls = [append(number) for number in range(asked.clients)]

    def subscribe() -> None:
        for position in positions:
            seen[position] = time.perf_counter()

    threading.Thread(target=subscribe, daemon=True).start()
    begun = time.perf_counter() + asked.warm_s
    until = begun + asked.seconds

    def client(first: int, call: Callable[[], int]) -> None:
        for number in range(first, int(asked.rate * asked.seconds), asked.clients):
            time.sleep(max(0.0, begun + number / asked.rate - time.perf_counter()))
            from_ = time.perf_counter()
            if from_ > until:
                return
            position = call()
            acknowledged[position] = time.perf_counter()
            sent[position] = from_

    threads = [threading.Thread(target=client, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    deadline = until + DRAIN_S
    for thread in threads:
        thread.join(max(0.1, deadline - time.perf_counter()))
    while not set(acknowledged) <= set(seen) and time.perf_counter() < deadline:
        time.sleep(0.01)
    # A thread that hangs may still add to them: look at copies.
    ended = time.perf_counter()
    return delivered(dict(sent), dict(acknowledged), dict(seen), begun=begun, ended=ended)


def delivered(
    sent: Mapping[Place, float],
    acknowledged: Mapping[Place, float],
    seen: Mapping[Place, float],
    *,
    begun: float,
    ended: float,
) -> dict[str, float]:
    """Summarise a delivery by position (of each subscriber, where there are several).

    All times are of one clock, `begun` is the first append's. An event that the subscriber has
    before its writer has the answer counts as 0 after it. One that it has not by the time `ended`
    is as late as that, at least.
    """
    positions = sent.keys() & acknowledged.keys()
    if not positions:
        raise SystemExit("no append was acknowledged")
    arrived = {position: seen.get(position, ended) for position in positions}
    after_ack = sorted(max(0.0, arrived[at] - acknowledged[at]) for at in positions)
    after_send = sorted(arrived[at] - sent[at] for at in positions)
    return {
        "events_per_s": len(positions) / (max(acknowledged.values()) - begun),
        "p50_ms": percentile(after_ack, 50) * 1000,
        "p99_ms": percentile(after_ack, 99) * 1000,
        "sent_p50_ms": percentile(after_send, 50) * 1000,
        "sent_p99_ms": percentile(after_send, 99) * 1000,
        "not_seen": float(len(positions - seen.keys())),
        "all_events": float(len(positions)),
    }
