"""Kafka as Spark reads it, and the consumer group that shows how far ingest has come."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

import pyarrow as pa
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from kernel.errors import Unavailable
from kernel.positions import Offsets
from lake.collecting import NAMES_OF_FILES, collected, small_epoch
from lake.sessions import session_beside
from lake.table_columns import DECODED
from pipeline.decode.records import (
    BatchDecoder,
    Router,
    decode,
    decode_batches,
    put_together,
    row_of,
)
from pipeline.log.log_task import TOLD, Facts, LogTask
from pipeline.log.staged_rows import Staged
from pipeline.read.driver_reads import RECORDS
from pipeline.read.kafka_topics import TIMEOUT_S, KafkaTopics
from schemas.records import KafkaRecord

FEW_RECORDS = 5_000
"""Up to so many that take a decoder's time each are decoded in this process.

Handing records to Spark's Python workers costs more than reading few, or many side by side."""
_TASKS_PER_CORE = 2
"""Of executors: fewer leave cores idle at the end, more begin more files."""
_LEAST_SHARE = 10_000
"""Records of one partition that are worth a task of their own."""
RECORDS_AT_ONCE = 500
"""Records that Spark hands to Python in one batch. It measures a batch behind each of its rows, for
which it goes through all headers in it: with 10,000 that takes 48 us a record, with 500 two."""
RECORD_COLUMNS = tuple(RECORDS.names)


class IngestBroker:
    """What ingest asks of Kafka beside its records: where topics end, and a group for people.

    The manifest stays the truth about offsets. Nobody waits for the broker's answer to those
    published: it is looked at when the next ones are.
    """

    def __init__(self, topics: KafkaTopics, *, group: str, prefix: str) -> None:
        self._topics = topics
        self._prefix = prefix
        self._admin = AdminClient({"bootstrap.servers": topics.bootstrap, "log_level": 3})
        self._asked: list[Future[object]] = []
        self.group = group
        self.failures = 0

    def ends(self, source: str) -> Offsets:
        """Return where a captured source's topics end, uncommitted records included.

        Raises `Unavailable`.
        """
        topics = self._topics.of_source(self._prefix, source)
        lost = [topic for topic, partitions in topics.items() if not partitions]
        if lost or not topics:
            raise Unavailable(f"Kafka does not know where {', '.join(lost) or source} ends")
        return self._topics.ends(topics)

    def publish(self, offsets: Offsets) -> None:
        """Commit offsets to the group, unless the broker has not answered the last ones yet.

        A failure is counted: the next epoch publishes again.
        """
        if any(not future.done() for future in self._asked):
            return
        self.settle()
        places = [
            TopicPartition(topic, int(partition), offset)
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        ]
        if not places:
            return
        request = ConsumerGroupTopicPartitions(self.group, places)
        try:
            self._asked = list(self._admin.alter_consumer_group_offsets([request]).values())
        except KafkaException:
            self.failures += 1

    def settle(self) -> None:
        """Wait for the answer to what was published last."""
        asked, self._asked = self._asked, []
        for future in asked:
            try:
                future.result(timeout=TIMEOUT_S)
            except (KafkaException, FutureTimeout):
                self.failures += 1


def session_for_records(spark: SparkSession) -> SparkSession:
    """Return a session beside another one, for records that executors read and decode."""
    beside = session_beside(spark)
    beside.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(RECORDS_AT_ONCE))
    return beside


def stream_records(
    spark: SparkSession, bootstrap: str, pattern: str, starting: Offsets, *, max_records: int
) -> DataFrame:
    """Read topics as a stream, from exact offsets; topics that appear later from their start."""
    reader = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribePattern", pattern)
        .option("startingOffsets", json.dumps(starting) if starting else "earliest")
        .option("maxOffsetsPerTrigger", max_records)
    )
    return reader.options(**_COMMON).load()


def read_records(
    spark: SparkSession, bootstrap: str, start: Offsets, end: Offsets, *, tasks: int = 1
) -> DataFrame:
    """Read exactly the records in `[start, end)`.

    Fewer partitions than `tasks` are read in that many ranges, each by a task of its own.
    """
    reader = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("minPartitions", tasks)
        .option("assign", json.dumps({t: [int(p) for p in ps] for t, ps in end.items()}))
        .option("startingOffsets", json.dumps(start))
        .option("endingOffsets", json.dumps(end))
    )
    return reader.options(**_COMMON).load()


def decode_records(records: DataFrame, router: Router, *, here: bool, most_bytes: int) -> pa.Table:
    """Decode Kafka records and return the rows, as `frames.DECODED`.

    They are decoded `here`, in this process, or by Spark's Python workers. Raises `TooLarge` for
    more than `most_bytes`.
    """
    raw, limit = records.select(*RECORD_COLUMNS).coalesce(2), small_epoch(most_bytes)
    if here:
        return decoded_here(collected(raw, limit), router)
    decoded = raw.mapInArrow(BatchDecoder(router), from_arrow_schema(DECODED))
    return collected(decoded, limit).cast(DECODED)


def decoded_here(records: pa.Table, router: Router) -> pa.Table:
    """Decode records (`RECORD_COLUMNS`) in this process, and return the rows as `DECODED`."""
    batches = decode_batches(put_together(iter(records.to_batches())), router)
    return pa.Table.from_batches(batches, DECODED)


def stage_records(
    spark: SparkSession,
    bootstrap: str,
    start: Offsets,
    end: Offsets,
    router: Router,
    facts: Facts,
) -> Staged:
    """Have executors read and decode the records in `[start, end)`, and write the log's files.

    `spark` is a `session_for_records`.
    """
    most = spark.sparkContext.defaultParallelism * _TASKS_PER_CORE
    partitions = sum(len(places) for places in end.values())
    tasks = max(1, min(most, records_between(start, end) // _LEAST_SHARE))
    raw = read_records(spark, bootstrap, start, end, tasks=tasks).select(*RECORD_COLUMNS)
    if partitions >= tasks:
        # None of them was split: a task that reads two ranges of one could mix their order.
        raw = raw.coalesce(most)
    return staged_by_executors(raw, router, facts)


def staged_by_executors(raw: DataFrame, router: Router, facts: Facts) -> Staged:
    """Have executors decode records (`RECORD_COLUMNS`) and write them; see `LogTask`."""
    told = raw.mapInArrow(LogTask(router, facts), from_arrow_schema(TOLD))
    return Staged.of(facts, collected(told, NAMES_OF_FILES).cast(TOLD))


def try_decoding(records: DataFrame, router: Router) -> None:
    """Have executors decode Kafka records for nothing; raises what decoding them raises."""
    raw = records.select(*RECORD_COLUMNS)
    decoded = raw.mapInArrow(BatchDecoder(router), from_arrow_schema(DECODED))
    decoded.write.format("noop").mode("overwrite").save()


def decode_again(records: Sequence[KafkaRecord], router: Router) -> pa.Table:
    """Decode records that were in quarantine, in their order, with the schemas of now."""
    decoders = {topic: router.decoder(topic) for topic in {record.topic for record in records}}
    rows = [row_of(record, decode(record, decoders[record.topic])) for record in records]
    return pa.Table.from_pylist(rows, schema=DECODED)


def records_between(start: Offsets, end: Offsets) -> int:
    """Return the number of offsets in `[start, end)`: at least the number of records."""
    return sum(
        last - start.get(topic, {}).get(partition, last)
        for topic, partitions in end.items()
        for partition, last in partitions.items()
    )


_COMMON = {
    "includeHeaders": "true",
    # Lost records must stop the source with a reason, never be skipped.
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
    # A poll that came to the end leaves a fetch behind that the broker holds for so long. Spark's
    # next question on that connection waits for it: with Kafka's 500 ms, in every second epoch.
    "kafka.fetch.max.wait.ms": "10",
}
