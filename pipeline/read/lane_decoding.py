"""Records of several lanes decoded side by side: what one of them waits for is its alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Unavailable
from lake.table_columns import DECODED
from pipeline.decode.records import Router
from pipeline.read.kafka_records import decoded_here

PATIENCE_S, _RECORD_S = 5.0, 0.0005
"""So long others of an epoch wait for a lane, and so long more for each of its records: a registry
that hangs is waited for by the lane that asks it, not by all."""

LaneOf = Callable[[str], str]


@dataclass(slots=True)
class _Work:
    """The records of one lane, and what came of them."""

    records: pa.Table
    done: threading.Event = field(default_factory=threading.Event)
    rows: pa.Table | None = None
    error: Exception | None = None

    def run(self, router: Router) -> None:
        try:
            self.rows = decoded_here(self.records, router)
        except Exception as error:
            self.error = error
        finally:
            self.done.set()


def decoded_by_lane(
    records: pa.Table, router: Router, lane_of: LaneOf, *, patience_s: float = PATIENCE_S
) -> tuple[pa.Table, dict[str, Exception]]:
    """Decode records; return the rows as `DECODED`, and the lanes that have none, each with why.

    That is where decoding raised an error, or did not end in time: it then goes on by itself, and
    nobody has what comes of it.
    """
    works = {lane: _Work(own) for lane, own in _parted(records, lane_of).items()}
    began = time.monotonic()
    for lane, work in works.items():
        # Daemons: a process that is to end does not wait for a server that hangs.
        name = f"decode-{lane}"
        threading.Thread(target=work.run, args=(router,), name=name, daemon=True).start()
    for work in works.values():
        limit = began + patience_s + _RECORD_S * work.records.num_rows
        work.done.wait(max(0.0, limit - time.monotonic()))
    refused = {lane: error for lane, work in works.items() if (error := _error_of(work, began))}
    rows = [each.rows for lane, each in works.items() if lane not in refused and each.rows]
    return pa.concat_tables([DECODED.empty_table(), *rows]), refused


def _error_of(work: _Work, began: float) -> Exception | None:
    if work.done.is_set():
        return work.error
    waited = time.monotonic() - began
    return Unavailable(f"its records were not decoded within {waited:.0f} s")


def _parted(records: pa.Table, lane_of: LaneOf) -> Mapping[str, pa.Table]:
    """Return the records of each lane, in their order."""
    topics = records.column("topic")
    lanes: dict[str, list[str]] = {}
    for topic in pc.unique(topics).to_pylist():
        lanes.setdefault(lane_of(topic), []).append(topic)
    if len(lanes) < 2:
        return dict.fromkeys(lanes, records)
    return {
        lane: records.filter(pc.is_in(topics, pa.array(own, pa.string())))
        for lane, own in lanes.items()
    }
