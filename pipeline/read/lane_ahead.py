"""Rows of a lane that is apart, decoded before their turn, in blocks that are more than an epoch.

An epoch beside others is small, so that these wait but shortly; handing a process a range of that
size again and again takes longer than decoding it. While epochs are made of one block, the next one
is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Offsets
from pipeline.commit.manifest_rows import Bound
from pipeline.read.epoch_records import WORTH_A_PROCESS, EpochRecords
from pipeline.read.kafka_records import records_between

Part = Callable[[Bound], Bound]
"""Returns the next part of what is bound."""


@dataclass(frozen=True, slots=True)
class _Block:
    start: Offsets
    end: Offsets
    rows: Future[pa.Table | None]

    def rest_of(self, whole: Bound) -> Bound | None:
        """Return what of it is to be read next; None where nothing is, or it lies elsewhere."""
        for topic, places in self.end.items():
            for place, last in places.items():
                at = whole.start.get(topic, {}).get(place)
                if at is None or not self.start[topic][place] <= at <= last:
                    return None
        end = {
            topic: {p: self.end.get(topic, {}).get(p, at) for p, at in places.items()}
            for topic, places in whole.start.items()
        }
        return replace(whole, end=end) if records_between(whole.start, end) else None


@dataclass(frozen=True, slots=True)
class Early:
    """A part of a batch up to `end`, decoded before its turn; `rows` None: executors decode it."""

    end: Offsets
    rows: pa.Table | None


class LaneAhead:
    """Of one run. `block` says how much is decoded at once. `close` ends it, and `records` too."""

    def __init__(self, records: EpochRecords, block: Part, *, begins: Callable[[], None]) -> None:
        """`begins` is called by the thread that decodes, before anything else."""
        self._records = records
        self._block_of = block
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ahead", initializer=begins)
        self._block: _Block | None = None
        self._next: _Block | None = None

    def take(self, whole: Bound, part: Part) -> tuple[Bound, pa.Table | None]:
        """Return the next part of `whole`, and its rows; None where executors have to decode it.

        Raises what decoding raises.
        """
        rest = self._rest(whole)
        assert self._block is not None, "there is a block that goes on"
        block = self._block
        try:
            rows = block.rows.result()
        except BaseException:
            self._block = self._next = None
            raise
        if rows is None:
            self._block = self._next = None
            return rest, None
        if self._next is None and records_between(block.start, block.end) >= WORTH_A_PROCESS:
            self._go_ahead(whole, block.end)
        taken = part(rest)
        return taken, _between(rows, taken.start, taken.end)

    def close(self) -> None:
        """Decode no more: who waits for rows gets an error."""
        self._records.interrupt()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._records.close()

    def _rest(self, whole: Bound) -> Bound:
        for block in (self._block, self._next):
            rest = None if block is None else block.rest_of(whole)
            if rest is not None:
                if block is self._next:
                    self._next = None
                self._block = block
                return rest
        rest = self._block_of(whole)
        self._block, self._next = self._begun(rest), None
        return rest

    def _go_ahead(self, whole: Bound, behind: Offsets) -> None:
        """Begin with the block that comes next, where there is much of one."""
        start = {
            topic: {p: max(at, behind.get(topic, {}).get(p, at)) for p, at in places.items()}
            for topic, places in whole.start.items()
        }
        if records_between(start, whole.end) >= WORTH_A_PROCESS:
            self._next = self._begun(self._block_of(replace(whole, start=start)))

    def _begun(self, bound: Bound) -> _Block:
        rows = self._pool.submit(self._records.early, bound.start, bound.end)
        return _Block(bound.start, bound.end, rows)


def _between(rows: pa.Table, start: Offsets, end: Offsets) -> pa.Table:
    """Return the rows in `[start, end)`."""
    topics, partitions, offsets = (rows.column(name) for name in ("topic", "partition", "offset"))
    masks = [
        _all(
            pc.equal(topics, topic),
            pc.equal(partitions, int(place)),
            pc.greater_equal(offsets, start[topic][place]),
            pc.less(offsets, last),
        )
        for topic, places in end.items()
        for place, last in places.items()
        if start[topic][place] < last
    ]
    return rows.filter(reduce(pc.or_, masks)) if masks else rows.slice(0, 0)


def _all(*masks: pa.ChunkedArray) -> pa.ChunkedArray:
    return reduce(pc.and_, masks)
