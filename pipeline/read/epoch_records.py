"""The records of an epoch: read from Kafka, and decoded in this process or by executors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property, partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kernel.errors import TooLarge
from kernel.positions import Offsets
from lake.table_columns import DECODED
from pipeline.commit.manifest_rows import Bound
from pipeline.decode.records import Router
from pipeline.decode.side_by_side import Many
from pipeline.executor import Executor, ExecutorChoice
from pipeline.log.log_task import Facts
from pipeline.log.staged_rows import Stage, Staged
from pipeline.read.driver_reads import DriverReads
from pipeline.read.kafka_records import (
    FEW_RECORDS,
    decode_records,
    decoded_here,
    read_records,
    records_between,
    session_for_records,
    stage_records,
    try_decoding,
)
from pipeline.read.lane_decoding import LaneOf, Sifted, decoded_by_lane
from pipeline.read.lane_process import LaneProcess
from pipeline.read.part_ahead import PartAhead

log = logging.getLogger("penstock.pipeline")

WORTH_A_PROCESS = 2_000
"""Fewer records take less than it does to hand them over, and are waited for by nobody."""


class EpochRecords:
    """Reads and decodes what lies between offsets, where `executor` has it done."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        router: Router,
        executor: ExecutorChoice,
        *,
        process: LaneProcess | None = None,
    ) -> None:
        """With a `process` it is that which decodes many records `early`."""
        self._beside = spark
        self._bootstrap = bootstrap
        self._router = router
        self._executor = executor
        self._reads = DriverReads(bootstrap)
        self._process = process
        self._next = PartAhead()

    @cached_property
    def _spark(self) -> SparkSession:
        """The session in which executors read; most runs make small epochs and need none."""
        return session_for_records(self._beside)

    def interrupt(self) -> None:
        """Have a process end that decodes: who waits for its rows gets an error."""
        if self._process is not None:
            self._process.interrupt()

    def close(self) -> None:
        """Leave the broker."""
        self._next.close()
        self._reads.close()
        if self._process is not None:
            self._process.close()

    def small(self, start: Offsets, end: Offsets) -> bool:
        """Say whether so many records are decoded in this process."""
        return self._executor.of(records_between(start, end)) is Executor.DRIVER

    def at_once(self, records: int) -> int:
        """Return how many of a batch of records are to be made into its next epoch."""
        return self._executor.at_once(records)

    def decoded(self, start: Offsets, end: Offsets) -> pa.Table:
        """Return the records in `[start, end)`, decoded. Raises `TooLarge`."""
        self._next.drop()
        return self._decoded(start, end)

    def ahead(self, part: Bound, lane_of: LaneOf) -> None:
        """Read and decode what is to be asked for next, `by_lane`, beside whoever calls."""
        if self.small(part.start, part.end):
            self._next.begin(part, partial(self._by_lane, lane_of=lane_of))

    def part_ahead(self, whole: Bound) -> Bound | None:
        """Return the part of an epoch that is read `ahead`; None where there is none."""
        return self._next.part_of(whole)

    def _decoded(self, start: Offsets, end: Offsets) -> pa.Table:
        with self._noting(start, end):
            read = self._read_here(start, end)
            if read is None:
                return self._saw(self._by_spark(start, end))
            return self._saw(decoded_here(read, self._router))

    def by_lane(self, start: Offsets, end: Offsets, lane_of: LaneOf) -> Sifted:
        """Return the records in `[start, end)`, decoded, each lane by itself. Raises `TooLarge`."""
        return self._next.take(start, end) or self._by_lane(start, end, lane_of)

    def _by_lane(self, start: Offsets, end: Offsets, lane_of: LaneOf) -> Sifted:
        with self._noting(start, end):
            read = self._read_here(start, end)
            if read is not None:
                found = decoded_by_lane(read, self._router, lane_of)
                self._saw(found.rows)
                return found
            try:
                return Sifted(rows=self._saw(self._by_spark(start, end)))
            except TooLarge:
                raise
            except Exception as error:
                log.warning("the records of an epoch are read lane by lane: %s", error)
        return self._each(start, end, lane_of)

    def _each(self, start: Offsets, end: Offsets, lane_of: LaneOf) -> Sifted:
        rows, refused = [DECODED.empty_table()], dict[str, Exception]()
        for lane, own in _lanes(start, end, lane_of).items():
            try:
                rows.append(self._decoded(*own))
            except TooLarge:
                raise
            except Exception as error:
                refused[lane] = error
        return Sifted(rows=pa.concat_tables(rows), refused=refused)

    def undecodable(self, start: Offsets, end: Offsets, lane_of: LaneOf) -> dict[str, Exception]:
        """Return the lanes of which the records in `[start, end)` cannot be decoded now."""
        found: dict[str, Exception] = {}
        for lane, own in _lanes(start, end, lane_of).items():
            try:
                self.try_out(*own)
            except Exception as error:
                found[lane] = error
        return found

    def _read_here(self, start: Offsets, end: Offsets) -> pa.Table | None:
        """Read with the driver's consumer; None where Spark has to. Raises `TooLarge`."""
        if not self._few(start, end):
            return None
        return self._reads.read(start, end, most_bytes=self._executor.most_bytes)

    def _few(self, start: Offsets, end: Offsets) -> bool:
        slow = {t: p for t, p in end.items() if not isinstance(self._router.decoder(t), Many)}
        return records_between(start, slow) <= FEW_RECORDS

    def _by_spark(self, start: Offsets, end: Offsets) -> pa.Table:
        records, few = self._between(start, end), self._few(start, end)
        most = self._executor.most_bytes
        return decode_records(records, self._router, here=few, most_bytes=most)

    def _saw(self, decoded: pa.Table) -> pa.Table:
        self._executor.saw(decoded.num_rows, decoded.nbytes)
        return decoded

    @contextmanager
    def _noting(self, start: Offsets, end: Offsets) -> Iterator[None]:
        try:
            yield
        except TooLarge:
            self._executor.refused(records_between(start, end))
            raise

    def early(self, start: Offsets, end: Offsets) -> pa.Table | None:
        """Return the records in `[start, end)`, decoded; None where executors have to do it.

        Many are decoded by a process beside this one, where there is one.
        """
        with suppress(TooLarge):
            if not self.small(start, end):
                return None
            process = self._process
            few = records_between(start, end) < WORTH_A_PROCESS
            if process is None or few or not process.has_room():
                return self.decoded(start, end)
            with self._noting(start, end):
                most = self._executor.most_bytes
                rows = process.decoded(start, end, most_bytes=most)
            return self.decoded(start, end) if rows is None else self._saw(rows)
        return None

    def stage(self, start: Offsets, end: Offsets) -> Stage | None:
        """Return what has executors decode and write records; None where they may not."""
        if not self._executor.may_pass_on:
            return None
        return self._executor.noting(partial(self._staged, start, end))

    def try_out(self, start: Offsets, end: Offsets) -> None:
        """Decode records for nothing; raises what decoding them raises, of their size nothing."""
        if self.small(start, end):
            with suppress(TooLarge):
                self.decoded(start, end)
                return
        try_decoding(self._between(start, end), self._router)

    def _staged(self, start: Offsets, end: Offsets, facts: Facts) -> Staged:
        return stage_records(self._spark, self._bootstrap, start, end, self._router, facts)

    def _between(self, start: Offsets, end: Offsets) -> DataFrame:
        return read_records(self._spark, self._bootstrap, start, end)


def _lanes(start: Offsets, end: Offsets, lane_of: LaneOf) -> dict[str, tuple[Offsets, Offsets]]:
    """Return the part of each lane of `[start, end)` that has records."""
    topics: dict[str, list[str]] = {}
    for topic, places in end.items():
        if records_between(start, {topic: places}):
            topics.setdefault(lane_of(topic), []).append(topic)
    return {
        lane: ({topic: start[topic] for topic in own}, {topic: end[topic] for topic in own})
        for lane, own in topics.items()
    }
