"""The records of an epoch: read from Kafka, and decoded in this process or by executors."""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property, partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from kernel.errors import TooLarge
from kernel.positions import Offsets
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


class EpochRecords:
    """Reads and decodes what lies between offsets, where `executor` has it done."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, router: Router, executor: ExecutorChoice
    ) -> None:
        self._beside = spark
        self._bootstrap = bootstrap
        self._router = router
        self._executor = executor
        self._reads = DriverReads(bootstrap)

    @cached_property
    def _spark(self) -> SparkSession:
        """The session in which executors read; most runs make small epochs and need none."""
        return session_for_records(self._beside)

    def close(self) -> None:
        """Leave the broker."""
        self._reads.close()

    def small(self, start: Offsets, end: Offsets) -> bool:
        """Say whether so many records are decoded in this process."""
        return self._executor.of(records_between(start, end)) is Executor.DRIVER

    def at_once(self, records: int) -> int:
        """Return how many of a batch of records are to be made into its next epoch."""
        return self._executor.at_once(records)

    def decoded(self, start: Offsets, end: Offsets) -> pa.Table:
        """Return the records in `[start, end)`, decoded. Raises `TooLarge`."""
        slow = {t: p for t, p in end.items() if not isinstance(self._router.decoder(t), Many)}
        few, most = records_between(start, slow) <= FEW_RECORDS, self._executor.most_bytes
        try:
            read = self._reads.read(start, end, most_bytes=most) if few else None
            if read is None:
                records = self._between(start, end)
                decoded = decode_records(records, self._router, here=few, most_bytes=most)
            else:
                decoded = decoded_here(read, self._router)
        except TooLarge:
            self._executor.refused(records_between(start, end))
            raise
        self._executor.saw(decoded.num_rows, decoded.nbytes)
        return decoded

    def early(self, start: Offsets, end: Offsets) -> pa.Table | None:
        """Return the records in `[start, end)`, decoded; None where executors have to do it."""
        with suppress(TooLarge):
            return self.decoded(start, end) if self.small(start, end) else None
        return None

    def stage(self, start: Offsets, end: Offsets) -> Stage | None:
        """Return what has executors decode and write records; None where they may not."""
        if not self._executor.may_pass_on:
            return None
        return self._executor.noting(partial(self._staged, start, end))

    def try_out(self, start: Offsets, end: Offsets) -> None:
        """Decode records for nothing; raises what decoding them raises."""
        if self.small(start, end):
            self.decoded(start, end)
        else:
            try_decoding(self._between(start, end), self._router)

    def _staged(self, start: Offsets, end: Offsets, facts: Facts) -> Staged:
        return stage_records(self._spark, self._bootstrap, start, end, self._router, facts)

    def _between(self, start: Offsets, end: Offsets) -> DataFrame:
        return read_records(self._spark, self._bootstrap, start, end)
