"""The outbox: events appended in PostgreSQL, read from Kafka, byte for byte."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from apps.capture import capture_site
from apps.settings import Settings
from cdc import outbox
from cdc.connect import ConnectClient
from cdc.connectors import replication_name
from cdc.database import connected
from cdc.replication import drop_publication, drop_slot
from eventstore.decode import EventDecoder
from eventstore.postgres.migrate import migrate
from schemas.records import RecordedEvent
from schemas.wire import frame
from tests.support.services.waiting import until
from tests.support.sources.capturing import Reader


class ThreeBytes:
    """Schemas that read any three bytes."""

    def schema(self, schema_id: int) -> str:
        """Return the text of a schema."""
        fixed = {"type": "fixed", "name": "three", "size": 3}
        fields = [{"name": "bytes", "type": fixed}]
        return json.dumps({"type": "record", "name": f"s{schema_id}", "fields": fields})


DECODE = EventDecoder(ThreeBytes())
INSERT = """
INSERT INTO es.events SELECT %(position)s, store_id, %(id)s, %(stream)s, 0, 'order', 'placed', 7, 0,
       %(data)s, %(subject)s, NULL, %(metadata)s, %(tags)s, %(occurred_at)s, %(recorded_at)s
  FROM es.store
"""
OCCURRED = datetime(2024, 2, 29, 12, 34, 56, 789012, tzinfo=UTC)
RECORDED = datetime(2024, 3, 1, tzinfo=UTC)


class Outbox:
    """An outbox over a store of its own, in a workspace of its own."""

    def __init__(self, settings: Settings) -> None:
        self.name = f"o{uuid.uuid4().hex[:8]}"
        self.admin = settings.required("postgres.dsn")
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self.name}".encode())
        self.dsn = make_conninfo(self.admin, dbname=self.name)
        asyncio.run(migrate(self.dsn))
        self.placement = replace(
            capture_site(settings).placement, workspace=self.name, topic_prefix=f"{self.name}."
        )
        self.connect = ConnectClient(settings.required("connect.url"))
        self.reader = Reader(settings.required("kafka.bootstrap"), f"{self.name}.events.")
        self.records: list[RecordedEvent] = []

    def start(self) -> None:
        outbox.ensure(self.dsn, self.placement, self.connect)

    def append(self, *positions: int) -> None:
        with psycopg.connect(self.dsn) as connection:
            for position in positions:
                connection.execute(INSERT, _row(position))

    def await_events(self, count: int) -> list[RecordedEvent]:
        def there() -> bool:
            for record in self.reader.poll():
                event = DECODE(record)
                assert isinstance(event, RecordedEvent), event
                assert record.key == event.stream.encode()
                self.records.append(event)
            return len({event.position for event in self.records}) >= count

        until(there, f"{count} events", deadline_s=60)
        return self.records

    def close(self) -> None:
        name = f"{self.name}-outbox"
        self.connect.stop(name)
        self.connect.await_status(
            name, lambda s: s.task is None, timeout_s=60, give_up_failed=False
        )
        self.connect.forget_offsets(name)
        self.connect.delete(name)
        with connected(self.dsn) as connection:
            drop_slot(connection, replication_name(self.name, "outbox"))
            drop_publication(connection, replication_name(self.name, "outbox"))
        self.connect.close()
        self.reader.close()
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {self.name} WITH (FORCE)".encode())


def _row(position: int) -> dict[str, object]:
    return {
        "position": position,
        "id": uuid.uuid5(uuid.NAMESPACE_OID, str(position)),
        "stream": f"order-{position}",
        "data": frame(7, bytes([position % 256, 0, 255])),
        "subject": "somebody" if position % 2 else None,
        "metadata": json.dumps({"cause": 'say "hi"', "n": 1.5, "none": None, "ü": ["é", position]}),
        "tags": ["course:7", 'a "b"', "c,d", "e\\f", "{x}"] if position % 2 else [],
        "occurred_at": OCCURRED,
        "recorded_at": RECORDED,
    }


@pytest.fixture
def events(stack: Settings) -> Iterator[Outbox]:
    found = Outbox(stack)
    try:
        yield found
    finally:
        found.close()


def test_every_event_arrives_once_and_whole(events: Outbox) -> None:
    # Appended before the outbox exists: sent all the same, and first.
    events.append(1, 2, 3)
    events.start()
    events.append(4, 5)
    events.start()
    events.append(6)
    found = {event.position: event for event in events.await_events(6)}
    assert len(events.records) == len(found) == 6
    with connected(events.dsn) as connection:
        row = connection.execute("SELECT store_id::text AS id FROM es.store").fetchone()
        assert row is not None
    for position, event in found.items():
        wanted = _row(position)
        assert event.store_id == row["id"]
        assert event.data == wanted["data"]
        assert (event.id, event.stream, event.version) == (wanted["id"], wanted["stream"], 0)
        assert (event.category, event.type, event.schema_id) == ("order", "placed", 7)
        assert dict(event.metadata) == json.loads(str(wanted["metadata"]))
        assert list(event.tags) == wanted["tags"]
        assert (event.subject, event.key_id) == (wanted["subject"], None)
        assert (event.occurred_at, event.recorded_at) == (OCCURRED, RECORDED)


@pytest.mark.matrix
def test_a_store_at_rest_keeps_no_wal(events: Outbox) -> None:
    events.start()
    events.append(1)
    events.await_events(1)
    with connected(events.dsn) as connection:
        connection.execute(
            "CREATE TABLE noise AS SELECT repeat('x', 999) FROM generate_series(1, 9999)"
        )
        name = replication_name(events.name, "outbox")
        query = (
            "SELECT confirmed_flush_lsn >= %s::pg_lsn AS past FROM pg_replication_slots"
            " WHERE slot_name = %s"
        )
        target = connection.execute("SELECT pg_current_wal_lsn()::text AS lsn").fetchone()
        assert target is not None

        def followed() -> bool:
            row = connection.execute(query.encode(), (target["lsn"], name)).fetchone()
            return row is not None and bool(row["past"])

        until(followed, "the slot follows", deadline_s=60)
