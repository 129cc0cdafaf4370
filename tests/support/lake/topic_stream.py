"""An external topic on the broker, and the stream that reads what statements declare of it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from apps.capture import capture_site
from apps.pipeline.routing import router_of
from apps.settings import Setting, Settings
from cdc.upkeep.topic_sources import topic_states
from kernel.loops import Loop
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest_rows import Committed
from pipeline.executor import Executor, ExecutorChoice
from pipeline.installs.install_book import InstallBook
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.stream import IngestRun
from projections.run.catalog import DeployedCatalog
from projections.run.projection_rounds import Projecting
from projections.sql.statements.parse import parse_script
from replay.deployment import apply
from replay.subject import Site
from schemas.registry import ConfluentRegistry
from schemas.wire import frame
from tests.support.lake.feeding import Epochs, create_topic
from tests.support.services.waiting import until

FOR_EVER = timedelta(days=36_500)
AT = datetime(2013, 1, 1, tzinfo=UTC)
FIELDS = [{"name": "device", "type": "long"}, {"name": "celsius", "type": "double"}]
READING = {"type": "record", "name": "Reading", "fields": FIELDS}


def ping(device: object, minute: int, v: object = 1) -> dict[str, object]:
    """Return a record as JSON has it."""
    return {"device": device, "at": AT.replace(minute=minute).isoformat(), "v": v, "more": True}


def reading(schema_id: int, device: int, celsius: float) -> bytes:
    """Return a record of `READING`, framed."""
    body = io.BytesIO()
    parsed = fastavro.parse_schema(READING)
    fastavro.schemaless_writer(body, parsed, {"device": device, "celsius": celsius})
    return frame(schema_id, body.getvalue())


@dataclass
class TopicStream:
    """A lake with declared sources, run after run, as a pipeline's process makes them."""

    stack: Settings
    spark: SparkSession
    lake: Lake
    prefix: str
    folder: Path
    made: list[Committed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bootstrap = self.stack.required("kafka.bootstrap")
        self.registry = ConfluentRegistry(self.stack.required("registry.url"))
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self.projecting = Projecting(self.spark, self.lake, self.registry, on_run=lambda *_: None)

    def deploy(self, text: str) -> None:
        """Deploy statements, as `penstock projection apply` does."""
        script = parse_script(text)
        apply(Site(lake=self.lake), script.sources, script.projections, prefix=self.prefix)

    def epochs(self, executor: Executor = Executor.DRIVER) -> Epochs:
        """Return what makes epochs of the topics step by step."""
        deployment = DeployedCatalog(self.lake, Tables()).deployment()
        router = router_of(deployment, prefix=self.prefix, registry_url=self.registry.url)
        # A tombstone's time is that of now: what other records say of 2013 is not late beside it.
        return Epochs(
            self.spark, self.lake, router, self.bootstrap, executor=executor, lateness=FOR_EVER
        )

    def run(self) -> IngestRun:
        """Return a run of a new process that reads nothing yet."""
        epochs = self.epochs()
        run = IngestRun(
            self.spark,
            KafkaTopics(self.bootstrap),
            epochs.router,
            epochs.ingest,
            InstallBook(self.lake, epochs.tables),
            loop=Loop("ingest"),
            captures={},
            without=(),
            checkpoints=self.folder / "checkpoints",
            max_records=10_000,
            executor=ExecutorChoice(asked=Executor.AUTO, driver_bytes=2**25),
            before_epoch=lambda: None,
            after_epoch=self.made.append,
            after_rest=lambda _: None,
        )
        run.finish_unfinished(epochs.manifest)
        return run

    def states(self) -> dict[str, tuple[str, int, int, int]]:
        """Return of each source, as `penstock source list` does: state, records, behind, refused.

        A state is told with its cause and its remedy, where it has them.
        """
        values = {
            "lake.path": Setting(value=str(self.lake.root), origin="test"),
            "kafka.topic_prefix": Setting(value=self.prefix, origin="test"),
        }
        there = Settings(self.stack.workspace, {**self.stack.values, **values})
        found = topic_states(capture_site(there))
        return {
            each.source: (
                "; ".join(filter(None, (each.state, each.cause, each.fix))),
                each.records,
                each.behind,
                each.quarantined,
            )
            for each in found
        }

    def make(self, topic: str, partitions: int = 1) -> None:
        """Make a topic."""
        create_topic(self.bootstrap, topic, partitions)

    def widen(self, topic: str, partitions: int) -> None:
        """Give a topic more partitions."""
        for future in self.admin.create_partitions([NewPartitions(topic, partitions)]).values():
            future.result(timeout=30)
        topics = KafkaTopics(self.bootstrap)
        there = [*range(partitions)]
        until(lambda: topics.matching(re.escape(topic)) == {topic: there}, "the topic is wider")

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until the broker has forgotten it."""
        for future in self.admin.delete_topics([topic]).values():
            future.result(timeout=30)
        topics = KafkaTopics(self.bootstrap)
        until(lambda: not topics.ids([topic]), "the topic is gone")

    def send(
        self,
        topic: str,
        values: Sequence[bytes | Mapping[str, Any] | None],
        *,
        key: bytes | None = None,
        partition: int = 0,
    ) -> None:
        """Produce records, mappings as JSON, and wait until the broker has them."""
        # One that has just begun knows the partitions of now.
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for value in values:
            sent = json.dumps(value).encode() if isinstance(value, Mapping) else value
            producer.produce(topic, sent, key, partition)
        assert producer.flush(30) == 0

    def read(self, run: IngestRun, records: int) -> None:
        """Wait until epochs have logged or refused so many records in all."""

        def done() -> bool:
            logged = (
                e.counts.get(kind, 0) for e in self.made for kind in ("records", "quarantined")
            )
            return sum(logged) >= records or run.error is not None

        until(done, f"{records} records are read")
        assert run.error is None

    def project(self) -> None:
        """Bring everything derived to the newest epoch."""
        while self.projecting.step():
            pass

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return rows of a table of the lake, sorted."""
        found = Tables().read(self.lake.path(name), columns=list(columns))
        return [] if found is None else sorted(tuple(row.values()) for row in found.to_pylist())
