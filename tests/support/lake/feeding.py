"""Feeds Kafka as the outbox does, and runs epochs over what was fed."""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

import fastavro
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.executor import Executor
from pipeline.read.driver_reads import DriverReads
from pipeline.read.kafka_records import (
    IngestBroker,
    decode_again,
    decode_records,
    decoded_here,
    read_records,
    session_for_records,
    stage_records,
)
from pipeline.read.kafka_topics import KafkaTopics
from schemas.registry import ConfluentRegistry
from schemas.wire import frame
from tests.support.lake.ingested import IngestedLake

STORE = "0b0f7a0e-0000-4000-8000-000000000001"
START = datetime(2013, 1, 1, tzinfo=UTC)
FORCED = Executor(os.environ.get("TESTS_EXECUTOR", "driver"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """An event as a test describes it; the rest follows from the position."""

    position: int
    type: str = "departed"
    flight: int = 0
    delay: int = 0
    occurred_at: datetime | None = None

    @property
    def at(self) -> datetime:
        return self.occurred_at or START + timedelta(minutes=self.position)


class EventFeed:
    """Produces events of category `flight` with the outbox's headers."""

    def __init__(self, stack: Settings, prefix: str, *, partitions: int = 2) -> None:
        self.bootstrap = stack.required("kafka.bootstrap")
        self.registry_url = stack.required("registry.url")
        self.topic = f"{prefix}events.flight"
        self._producer = Producer({"bootstrap.servers": self.bootstrap})
        self._schemas: dict[str, int] = {}
        create_topic(self.bootstrap, self.topic, partitions)

    def send(self, events: Sequence[Fed]) -> None:
        """Produce events in the given order; returns when the broker has all of them."""
        for event in events:
            self.send_raw(self.value(event), self.headers(event), key=f"flight-{event.flight}")
        self.flush()

    def send_raw(self, value: bytes | None, headers: dict[str, str], *, key: str = "x") -> None:
        """Produce any record."""
        pairs = [(name, text.encode()) for name, text in headers.items()]
        self._producer.produce(self.topic, key=key, value=value, headers=pairs)

    def flush(self) -> None:
        """Wait until the broker has everything."""
        assert self._producer.flush(30) == 0

    def value(self, event: Fed) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, _parsed(event.type), _data(event))
        return frame(self._schema_id(event.type), out.getvalue())

    def headers(self, event: Fed) -> dict[str, str]:
        return {
            "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{event.position}")),
            "store_id": STORE,
            "type": event.type,
            "stream": f"flight-{event.flight}",
            "category": "flight",
            "version": str(event.position),
            "position": str(event.position),
            "schema_id": str(self._schema_id(event.type)),
            "data_format": "0",
            "metadata": "{}",
            "tags": "[]",
            "occurred_at": event.at.isoformat(),
            "recorded_at": START.isoformat(),
        }

    def _schema_id(self, kind: str) -> int:
        if kind not in self._schemas:
            registry = ConfluentRegistry(self.registry_url)
            self._schemas[kind] = registry.register(f"flight.{kind}", json.dumps(_schema(kind)))
        return self._schemas[kind]


@dataclass
class Epochs(IngestedLake):
    """Runs epochs over a feed's topics in a lake, batch by batch, as the stream does."""

    spark: SparkSession
    lake: Lake
    router: TopicRouter
    bootstrap: str
    lateness: timedelta = timedelta(minutes=10)
    executor: Executor = FORCED

    def __post_init__(self) -> None:
        self._reads = DriverReads(self.bootstrap)
        self.restart()

    def restart(self) -> None:
        """See `IngestedLake`."""
        self.close()
        super().restart()

    def close(self) -> None:
        """Leave the broker, which a consumer that rests would go on to ask."""
        self._reads.close()

    def made_ingest(self) -> Ingest:
        return Ingest(
            self.lake,
            self.tables,
            self.manifest,
            ConfluentRegistry(self.router.registry_url),
            lateness=lambda _: self.lateness,
            broker=IngestBroker(
                KafkaTopics(self.bootstrap),
                group=f"test.{self.router.prefix}ingest",
                prefix=self.router.prefix,
            ),
            redecode=lambda records: decode_again(records, self.router),
        )

    def run(self, *, up_to: dict[str, dict[str, int]] | None = None) -> Committed:
        """Make one epoch of everything that is in the topics now (or up to given offsets)."""
        topics = KafkaTopics(self.bootstrap)
        partitions = topics.matching(self.router.pattern())
        end = up_to or topics.ends(partitions)
        first = topics.earliest(partitions)
        last = self.ingest.last.end if self.ingest.last else {}
        start = {
            t: {p: last.get(t, {}).get(p, first[t][p]) for p in places} for t, places in end.items()
        }
        return self.between(start, end)

    def decoded(self, bound: Bound) -> pa.Table:
        """Read small epochs as the stream does: without a job of Spark, unless that has to."""
        read = self._reads.read(bound.start, bound.end, most_bytes=2**30)
        if read is not None:
            return decoded_here(read, self.router)
        records = read_records(self.spark, self.bootstrap, bound.start, bound.end)
        return decode_records(records, self.router, here=True, most_bytes=2**30)

    def finish(self, bound: Bound) -> Committed:
        if self.executor is Executor.DRIVER:
            return super().finish(bound)
        within = bound.start, bound.end
        spark = session_for_records(self.spark)
        stage = partial(stage_records, spark, self.bootstrap, *within, self.router)
        return self.ingest.run_epoch(bound, None, stage=stage)

    def table(self, name: str) -> pa.Table:
        rows = Tables().read(self.lake.path(name))
        assert rows is not None, f"no table {name}"
        return rows


def event_router(stack: Settings, prefix: str) -> TopicRouter:
    """Return a router for a test's events only."""
    return TopicRouter(prefix=prefix, registry_url=stack.required("registry.url"), captures={})


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Make a topic and wait until it is there."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(timeout=30)


def _schema(kind: str) -> dict[str, object]:
    fields = [("flight_id", "long"), ("delay", "long")]
    return {
        "type": "record",
        "name": kind,
        "namespace": "flight",
        "fields": [{"name": name, "type": of} for name, of in fields],
    }


def _parsed(kind: str) -> object:
    return fastavro.parse_schema(_schema(kind))


def _data(event: Fed) -> dict[str, object]:
    return {"flight_id": event.flight, "delay": event.delay}
