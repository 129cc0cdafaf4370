"""The sinks of a workspace's projections: topics, and categories of its own event store."""

from __future__ import annotations

from apps.calls import service_client
from apps.settings import Settings
from delivery.event_sink import EventOutlet
from lake.layout import Lake
from pipeline.read.kafka_topics import KafkaTopics
from projections.sinks.sink_metrics import SinkMetrics
from projections.sinks.sink_transactions import SinkTransactions
from projections.sinks.sinks import Sinks
from projections.sql.words.sinks import EventSink
from schemas.registry import SchemaRegistry


def sinks_of(
    settings: Settings, lake: Lake, registry: SchemaRegistry, metrics: SinkMetrics
) -> Sinks:
    """Return the sinks of a workspace's projections."""
    topics = KafkaTopics(settings.required("kafka.bootstrap"))

    def transact() -> SinkTransactions:
        return SinkTransactions(
            topics,
            workspace=settings.name,
            max_record_bytes=settings.number("kafka.max_record_bytes"),
        )

    def outlet(declared: EventSink, projection: str, transactions: SinkTransactions) -> EventOutlet:
        made = EventOutlet(
            declared=declared,
            projection=projection,
            service=service_client(settings),
            most_events=settings.number("service.max_events"),
            most_bytes=settings.number("service.max_body_bytes"),
            transactions=transactions,
        )
        made.name_store()
        return made

    return Sinks(
        lake,
        registry,
        metrics,
        topics,
        transact=transact,
        outlet_of_events=outlet,
        most_bytes=settings.number("pipeline.state_memory_bytes"),
    )
