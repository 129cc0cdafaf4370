"""A migrated store that knows the events' type, empty or with millions of events."""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import psycopg

from benchmarks.eventstore.lines import event_data
from eventstore.postgres.migrate import migrate
from schemas.inference import widened
from schemas.json_codec import JsonCodec
from schemas.wire import frame

CATEGORY, TYPE = "order", "placed"
SUBJECT = f"{CATEGORY}.{TYPE}"
SCHEMA_ID = 1
EVENTS_PER_STREAM = 20
PRELOAD_BEGINS = datetime(2026, 1, 1, tzinfo=UTC)
"""When the first preloaded event was recorded; each is a millisecond later than the one before."""
_ROWS_PER_COPY = 100_000
_COPY = (
    "COPY es.events (position, store_id, id, stream, version, category, type, schema_id, data, "
    "occurred_at, recorded_at) FROM STDIN"
)


def schema_json() -> str:
    """Return the schema of the events, as the service would infer it."""
    return widened(SUBJECT, None, event_data())


def seed(dsn: str) -> None:
    """Migrate a database and keep the events' schema there, so that no registry is needed."""
    asyncio.run(migrate(dsn))
    know_type(dsn)


def know_type(dsn: str) -> None:
    """Keep the events' schema in a migrated database, as it would be after the first of them."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "INSERT INTO es.schemas (schema_id, schema) VALUES (%s, %s)", (SCHEMA_ID, schema_json())
        )
        connection.execute(
            "INSERT INTO es.types (subject, schema_id) VALUES (%s, %s)", (SUBJECT, SCHEMA_ID)
        )
        connection.execute(
            "INSERT INTO es.schema_versions (subject, version, schema_id, schema)"
            " VALUES (%s, 1, %s, %s)",
            (SUBJECT, SCHEMA_ID, schema_json()),
        )


def preload(
    dsn: str, events: int, progress: Callable[[str], None], *, streams: int | None = None
) -> None:
    """Fill a seeded store with events by COPY, then vacuum it and write everything to disk.

    Events of a stream lie far apart, as those of living entities do: event n is version
    n // streams of stream n % streams.
    """
    streams = streams or max(1, events // EVENTS_PER_STREAM)
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("SELECT store_id FROM es.store").fetchone()
        assert row is not None
        for first in range(0, events, _ROWS_PER_COPY):
            count = min(_ROWS_PER_COPY, events - first)
            with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
                copy.write("".join(_rows(first, count, streams, row[0])))
            if first % (10 * _ROWS_PER_COPY) == 0:
                progress(f"  preloaded {first + count:,} of {events:,} events")
        connection.execute(
            "INSERT INTO es.streams (stream, category) "
            "SELECT stream, category FROM es.events GROUP BY stream, category"
        )
        connection.execute("INSERT INTO es.categories VALUES (%s)", (CATEGORY,))
        connection.execute("VACUUM ANALYZE es.events")
        connection.execute("VACUUM ANALYZE es.streams")
        connection.execute("CHECKPOINT")


def _rows(first: int, count: int, streams: int, store_id: uuid.UUID) -> Iterator[str]:
    codec = JsonCodec(schema_json())
    data = "\\\\x" + frame(SCHEMA_ID, codec.encode(event_data())).hex()
    bits = random.Random(first)
    for number in range(first, first + count):
        # Of version 7, as the store makes them: made later, sorted later.
        id_ = uuid.UUID(
            int=(number << 80)
            | (7 << 76)
            | (bits.getrandbits(12) << 64)
            | (2 << 62)
            | bits.getrandbits(62)
        )
        moment = (PRELOAD_BEGINS + timedelta(milliseconds=number)).isoformat()
        yield (
            f"{number + 1}\t{store_id}\t{id_}\t{CATEGORY}-{number % streams}"
            f"\t{number // streams}\t{CATEGORY}\t{TYPE}\t{SCHEMA_ID}\t{data}\t{moment}\t{moment}\n"
        )


def data_text() -> str:
    """Return the events' data as JSON text."""
    return json.dumps(event_data())
