"""Sends records at a steady rate, keeps when each record was first sent, and says who reads them.

Times are seconds since 1970 of this machine's clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cdc.visibility import quantile
from benchmarks.disturbed.disorder import Record
from benchmarks.disturbed.oracle import Key, Rows, Seen
from kernel.errors import Unavailable

_WARM_S, _BEFORE_S = 5.0, 3.0
"""What is sent so soon after the begin, or so shortly before the kill, is not calm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What was sent: when each record was, when the kill came, and what the queries must answer."""

    at: Mapping[int, float]
    began: float
    killed: float
    records: int
    expected: Mapping[str, Rows]
    needed: Mapping[str, Mapping[int, tuple[Key, int]]]

    def ages(self, query: str, seen: Seen) -> dict[str, float]:
        """Return how old records were when their effect could be read, calm ones and others."""
        calm, other, unseen = list[float](), list[float](), 0
        for record in self.needed[query]:
            sent = self.at[record]
            if record not in seen:
                unseen += 1
            elif self.began + _WARM_S <= sent < self.killed - _BEFORE_S:
                calm.append(seen[record] - sent)
            elif sent >= self.killed - _BEFORE_S:
                other.append(seen[record] - sent)
        calm.sort()
        return {
            "calm_records": float(len(calm)),
            "calm_p50_s": quantile(calm, 0.5),
            "calm_p95_s": quantile(calm, 0.95),
            "killed_max_s": max(other, default=0.0),
            "effects_unseen": float(unseen),
        }


class Product(Protocol):
    """What reads the topic and answers the queries. A method may raise `Unavailable`."""

    promise: str

    def start(self) -> None:
        """Start it, or start it again; returns when it has taken in what is there at first."""

    def kill(self) -> float:
        """End it by SIGKILL, and return the processor seconds that it took until then."""

    def stop(self) -> None:
        """End it, if it runs."""

    def cpu_s(self) -> float:
        """Return the processor seconds that it took, those before the kill among them."""

    def settled(self, sent: Sent, timeout_s: float) -> bool:
        """Wait until it has all that was sent, or will not have more; say which."""

    def rows(self) -> Mapping[str, Rows]:
        """Return the rows of each query at the end."""

    def seen(self, sent: Sent) -> Mapping[str, Seen]:
        """Return when the effect of each record could be read, by query."""

    def figures(self, sent: Sent) -> Mapping[str, float]:
        """Return what is told of this product alone."""


def make_topics(bootstrap: str, names: Sequence[str]) -> None:
    """Make topics of one partition, whose records have the time at which the broker took them."""
    config = {"message.timestamp.type": "LogAppendTime"}
    topics = [NewTopic(name, 1, 1, config=config) for name in names]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(60)


class Sending:
    """A load that goes on by itself."""

    def __init__(self, bootstrap: str, topic: str, records: Sequence[Record], per_s: float) -> None:
        self.sent_at: dict[int, float] = {}
        self._left, self._ended = len(records), 0.0
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        self._topic, self._records, self._per_s = topic, records, per_s
        self._thread = threading.Thread(target=self._send, daemon=True)

    def start(self) -> float:
        """Begin, and return the moment."""
        self._thread.start()
        return time.time()

    def end(self) -> float:
        """Wait for the last record to be with the broker, and return the moment.

        Raises `Unavailable` when the broker does not take it.
        """
        self._thread.join()
        if self._left:
            raise Unavailable(f"the broker did not take {self._left} records of {self._topic}")
        return self._ended

    def _send(self) -> None:
        began = time.monotonic()
        for number, record in enumerate(self._records):
            time.sleep(max(0.0, began + number / self._per_s - time.monotonic()))
            self.sent_at.setdefault(record.number, time.time())
            self._producer.produce(self._topic, record.value())
            self._producer.poll(0)
        self._left, self._ended = self._producer.flush(60), time.time()
