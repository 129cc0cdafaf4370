"""Counts the same events at every hop: acknowledged, PostgreSQL, Kafka, Delta log, typed tables.

Each place is asked in its own way (SQL, a plain consumer, the table's files), so that a mistake in
one does not hide in another.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from deltalake import DeltaTable

from examples.flights.narration import DemoCheck
from kernel.errors import Unavailable
from lake.datasets import dataset_of
from lake.layout import Lake, events_log
from projections.serve.lake_tables import table_names

_POLL_S = 1.0
_BATCH = 10_000
_SILENT_POLLS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoHop:
    """One place: how many rows, how many different events, and the last position if it has any."""

    place: str
    rows: int
    distinct: int
    last_position: int | None = None


def in_postgres(dsn: str) -> DemoHop:
    """Count the event store's own table."""
    query = "SELECT count(*), count(DISTINCT id), coalesce(max(position), 0) FROM es.events"
    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            row = connection.execute(query).fetchone()
    except psycopg.Error as error:
        raise Unavailable(f"the event store cannot be counted: {error}") from error
    rows, distinct, last = row or (0, 0, 0)
    return DemoHop(place="PostgreSQL", rows=rows, distinct=distinct, last_position=last)


def in_kafka(bootstrap: str, topic: str) -> DemoHop:
    """Count a topic's committed records from its beginning to its end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "penstock-demo-count",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=10).topics[topic]
        places = [TopicPartition(topic, number, 0) for number in found.partitions]
        consumer.assign(places)
        rows, ids = _read_all(consumer, partitions=len(places))
    except KafkaException as error:
        raise Unavailable(f"topic {topic} cannot be read: {error}") from error
    finally:
        consumer.close()
    return DemoHop(place=f"Kafka {topic}", rows=rows, distinct=len(ids))


def in_log(lake: Lake, store: str) -> DemoHop:
    """Count the Delta log of an event store."""
    table = _column(lake.path(events_log(store)), ["event_id", "position"])
    return DemoHop(
        place=f"log/events/{store[:8]}…",
        rows=table.num_rows,
        distinct=pc.count_distinct(table["event_id"]).as_py(),
        last_position=pc.max(table["position"]).as_py(),
    )


def in_typed(lake: Lake, category: str) -> DemoHop:
    """Count all typed tables of a category together."""
    names = [n for n in table_names(lake) if n.startswith(f"typed/events.{category}.")]
    tables = [_column(lake.path(name), ["event_id", "position"]) for name in names]
    table = pa.concat_tables(tables)
    return DemoHop(
        place=f"typed/events.{category}.* ({len(tables)} tables)",
        rows=table.num_rows,
        distinct=pc.count_distinct(table["event_id"]).as_py(),
        last_position=pc.max(table["position"]).as_py(),
    )


def closed_late(lake: Lake, store: str) -> set[str]:
    """Return the ids of the events in the log that came later than their lateness allows."""
    late = dataset_of(DeltaTable(lake.path(events_log(store)))).to_table(
        columns=["event_id"], filter=pc.field("closed_late")
    )
    return set(late["event_id"].to_pylist())


def agree(hop: DemoHop, *, events: int) -> DemoCheck:
    """Say whether a hop has every event once, and positions without a gap."""
    gapless = hop.last_position in (None, events)
    holds = hop.rows == hop.distinct == events and gapless
    found = f"{hop.rows:,} rows, {hop.distinct:,} different"
    if hop.last_position is not None:
        found += f", last position {hop.last_position:,}"
    return DemoCheck(title=hop.place, holds=holds, found=f"{found} (of {events:,})")


def _column(path: str, columns: list[str]) -> pa.Table:
    return dataset_of(DeltaTable(path)).to_table(columns=columns)


def _read_all(consumer: Consumer, *, partitions: int) -> tuple[int, set[str | bytes | None]]:
    rows, silent = 0, 0
    ids, ended = set[str | bytes | None](), set[int | None]()
    while len(ended) < partitions:
        messages = consumer.consume(_BATCH, timeout=_POLL_S)
        silent = 0 if messages else silent + 1
        if silent > _SILENT_POLLS:
            raise Unavailable(f"the topic went silent after {rows:,} records")
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                ended.add(message.partition())
                continue
            rows += 1
            ids.add(dict(message.headers() or [])["id"])
    return rows, ids
