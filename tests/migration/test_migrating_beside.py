"""A migration goes on beside writers, and gives up where a transaction stands in its way."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest

from eventstore.postgres import migrate as migrate_module
from eventstore.postgres.migrate import Migration, MigrationPatience, migrate, migrations
from eventstore.postgres.store import PostgresEventStore
from kernel.errors import Unavailable
from tests.contracts.events import request, to

NUMBER = len(migrations()) + 1
LITTLE = timedelta(milliseconds=50)
COLUMN = replace(
    migrations()[0],
    number=NUMBER,
    name=f"{NUMBER:04}_column.sql",
    text="ALTER TABLE es.events ADD COLUMN note text",
)
INDEXES = replace(
    migrations()[0],
    number=NUMBER,
    name=f"{NUMBER:04}_indexes.concurrently.sql",
    text="""-- Two indexes.
CREATE INDEX CONCURRENTLY events_schema ON es.events (schema_id);
CREATE INDEX CONCURRENTLY events_time ON es.events (recorded_at);
""",
)


def migrated(dsn: str, step: Migration, patience: MigrationPatience) -> list[str]:
    return asyncio.run(migrate(dsn, (*migrations(), step), patience=patience))


def appended(dsn: str) -> int:
    async def once() -> int:
        async with PostgresEventStore(dsn) as store:
            return (await store.append(request(to("order-1")))).appends[0].first_position

    return asyncio.run(once())


def valid(dsn: str) -> dict[str, bool]:
    with psycopg.connect(dsn) as connection:
        return dict(
            connection.execute(
                "SELECT relname, indisvalid FROM pg_index JOIN pg_class ON oid = indexrelid"
                " WHERE relname IN ('events_schema', 'events_time')"
            ).fetchall()
        )


@pytest.mark.parametrize(
    "patience",
    [
        MigrationPatience(behind=timedelta(milliseconds=1)),
        MigrationPatience(behind=timedelta(milliseconds=500)),
    ],
    ids=["a reader that has read for longer", "a reader that has just begun"],
)
def test_a_migration_gives_up_behind_a_reader_and_names_it(
    postgres_dsn: str, patience: MigrationPatience
) -> None:
    with psycopg.connect(postgres_dsn, application_name="backup") as reader:
        reader.execute("SELECT count(*) FROM es.events").fetchall()
        with pytest.raises(Unavailable, match=rf"{COLUMN.name}: session .*backup") as caught:
            migrated(postgres_dsn, COLUMN, patience)
        assert f"pg_terminate_backend({reader.info.backend_pid})" in caught.value.remedy
        assert appended(postgres_dsn) == 1
    assert migrated(postgres_dsn, COLUMN, MigrationPatience()) == [COLUMN.name]


def test_a_migration_does_not_queue_for_a_table_behind_a_long_reader(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it did, all who append would wait behind it."""

    async def queued(*_: object) -> None:
        pytest.fail("it asked for the table")

    monkeypatch.setattr(migrate_module, "_limit", queued)
    with psycopg.connect(postgres_dsn) as reader:
        reader.execute("SELECT count(*) FROM es.events").fetchall()
        with pytest.raises(Unavailable, match=COLUMN.name):
            migrated(postgres_dsn, COLUMN, MigrationPatience(behind=timedelta(0)))


def test_an_index_is_built_beside_writers_and_anew_when_it_was_left_invalid(
    postgres_dsn: str,
) -> None:
    with psycopg.connect(postgres_dsn, application_name="backup") as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT 1")
        with pytest.raises(Unavailable, match=rf"{INDEXES.name}: session .*backup"):
            migrated(postgres_dsn, INDEXES, MigrationPatience(beside=LITTLE))
        assert valid(postgres_dsn) == {"events_schema": False}
        assert appended(postgres_dsn) == 1
    assert migrated(postgres_dsn, INDEXES, MigrationPatience()) == [INDEXES.name]
    assert valid(postgres_dsn) == {"events_schema": True, "events_time": True}


def test_who_waits_for_another_migration_is_told_so(postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn) as other:
        other.execute("SELECT pg_advisory_lock(7305801001)")
        with pytest.raises(Unavailable, match="another service migrates"):
            migrated(postgres_dsn, COLUMN, MigrationPatience(turn=LITTLE))


def test_every_index_is_in_the_order_of_bytes(postgres_dsn: str) -> None:
    """The order of a locale is another after an upgrade of the library that knows it: searches
    in an index that was built before then miss rows, and a unique one takes a key twice.
    """
    with psycopg.connect(postgres_dsn) as connection:
        others = connection.execute(
            "SELECT indexrelid::regclass::text, collname FROM pg_index"
            " CROSS JOIN LATERAL unnest(indcollation::oid[]) AS used (id)"
            " JOIN pg_collation ON pg_collation.oid = used.id"
            " JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE relnamespace = 'es'::regnamespace AND collname <> 'C'"
        ).fetchall()
    assert others == []


@pytest.mark.parametrize("number", [13, 20])
def test_columns_and_keys_change_without_building_an_index_under_lock(
    postgres_dsn: str, number: int
) -> None:
    """The indexes that were built beside the writers become those of the changed tables."""
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA es CASCADE")
    *built, changed = [each for each in migrations() if each.number <= number]
    asyncio.run(migrate(postgres_dsn, tuple(built)))
    files = (
        "SELECT regexp_replace(indexdef, '(UNIQUE )?INDEX \\w+ | COLLATE \"C\"', '', 'g'),"
        " pg_relation_filenode(format('es.%I', indexname)::regclass) FROM pg_indexes"
        " WHERE schemaname = 'es' AND tablename IN"
        " ('events', 'streams', 'tags', 'archived', 'snapshots', 'commands')"
    )
    with psycopg.connect(postgres_dsn) as connection:
        before = set(connection.execute(files).fetchall())
    asyncio.run(migrate(postgres_dsn, (*built, changed)))
    with psycopg.connect(postgres_dsn) as connection:
        after = set(connection.execute(files).fetchall())
    assert after < before
