"""The quiet lane: some records a second, each with the moment at which it was sent.

When a record became visible is read off the lake afterwards, so that measuring costs nothing: the
manifest's row of its epoch says when that was committed. Both clocks are this machine's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow.compute as pc
from confluent_kafka import Producer
from deltalake import DeltaTable

from benchmarks.cdc.visibility import quantile
from lake.datasets import dataset_of
from lake.layout import Lake, topics_log
from lake.tables import Tables
from pipeline.commit.manifest_rows import COMMITTED

NAME = "quiet"
PER_S = 5.0


@dataclass(slots=True)
class QuietLane:
    """Sends to the topic of the lane, and says how old records were when readers could see them."""

    lake: Lake
    bootstrap: str
    sent: list[float] = field(default_factory=list)

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Send records for the time of the block."""
        over = threading.Event()
        thread = threading.Thread(target=self._talk, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def lag(self, began: float, ended: float) -> dict[str, float]:
        """Return quantiles of the seconds from sending to visible, of what was sent meanwhile.

        `unseen` counts records that are not visible yet: these are as old as they are by now.
        """
        seen, now = self._seen(), time.time()
        chosen = [at for at in list(self.sent) if began <= at <= ended]
        ages = sorted(seen.get(at, now) - at for at in chosen)
        return {
            "p50_s": quantile(ages, 0.5),
            "p95_s": quantile(ages, 0.95),
            "max_s": ages[-1] if ages else 0.0,
            "records": float(len(ages)),
            "unseen": float(sum(at not in seen for at in chosen)),
        }

    def until_seen(self, timeout_s: float) -> None:
        """Wait until all that was sent by now can be seen, or for so long."""
        deadline, last = time.monotonic() + timeout_s, max(self.sent, default=0.0)
        while time.monotonic() < deadline:
            if last <= max(self._seen(), default=0.0):
                return
            time.sleep(0.5)

    def _talk(self, over: threading.Event) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        while not over.wait(1 / PER_S):
            at = time.time()
            producer.produce(NAME, json.dumps({"at": at}).encode())
            producer.flush(10)
            self.sent.append(at)

    def _seen(self) -> dict[float, float]:
        """Return when each record became visible, by the moment at which it was sent."""
        rows = Tables().read(self.lake.path(topics_log(NAME)), columns=["epoch", "value"])
        if rows is None:
            return {}
        done = dataset_of(DeltaTable(self.lake.epochs)).to_table(
            columns=["epoch", "at"], filter=pc.field("kind") == COMMITTED
        )
        moments = [at.timestamp() for at in done["at"].to_pylist()]
        visible = dict(zip(done["epoch"].to_pylist(), moments, strict=True))
        pairs = zip(rows["epoch"].to_pylist(), rows["value"].to_pylist(), strict=True)
        return {json.loads(value)["at"]: visible[e] for e, value in pairs if e in visible}
