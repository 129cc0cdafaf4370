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

PATIENCE_S, _RECORD_S = 1.5, 0.0005
"""So long others of an epoch wait for a lane, and so long more for each of its records: a registry
that hangs is waited for by the lane that asks it, not by all."""

LaneOf = Callable[[str], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sifted:
    """Rows as `DECODED`, and the lanes that have none, each with why.

    Those that are `late` may only be slow: nothing is known to be wrong with them.
    """

    rows: pa.Table
    refused: Mapping[str, Exception] = field(default_factory=dict)
    late: frozenset[str] = frozenset()


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
        except BaseException as error:
            # What Rust panics of is no `Exception`: a lane without rows and error would lose them.
            self.error = Unavailable(f"its records cannot be decoded: {error!r}")
        finally:
            self.done.set()


def decoded_by_lane(
    records: pa.Table, router: Router, lane_of: LaneOf, *, patience_s: float = PATIENCE_S
) -> Sifted:
    """Decode records, each lane for itself.

    A lane is refused where decoding raises an error, and late where it does not end in time: it
    then goes on by itself, and nobody has what comes of it.
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
    late = frozenset(lane for lane, work in works.items() if not work.done.is_set())
    waited = time.monotonic() - began
    slow = Unavailable(f"its records were not decoded within {waited:.1f} s")
    errors = {lane: slow if lane in late else work.error for lane, work in works.items()}
    refused = {lane: error for lane, error in errors.items() if error is not None}
    rows = [work.rows for lane, work in works.items() if lane not in refused and work.rows]
    whole = pa.concat_tables([DECODED.empty_table(), *rows])
    return Sifted(rows=whole, refused=refused, late=late)


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
