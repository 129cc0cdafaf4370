"""What capture refuses, and what it says: cause and next command, nothing changed before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from apps.capture import capture_site
from apps.settings import Settings
from cdc import capture
from cdc.capture import SourceAccess
from cdc.connectors import replication_name
from cdc.database import connected
from cdc.replication import drop_slot, slot
from kernel.errors import Incompatible, Misconfigured, PenstockError, Unavailable
from tests.support.services.waiting import until
from tests.support.sources.capturing import Captured, prepare

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, v text);
CREATE TABLE keyless (a int, b text);
CREATE TABLE mute (id int PRIMARY KEY); ALTER TABLE mute REPLICA IDENTITY NOTHING;
CREATE UNLOGGED TABLE passing (id int PRIMARY KEY);
CREATE VIEW seen AS SELECT 1 AS one;
CREATE TABLE computed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
"""

Prepare = Callable[..., Captured]


@pytest.fixture
def source(stack: Settings, new_source: Callable[[str], str]) -> Iterator[Prepare]:
    with ExitStack() as after:
        dsn = new_source(TABLES)

        def make(*tables: str, **keys: tuple[str, ...]) -> Captured:
            named = {f"public.{table}": columns for table, columns in keys.items()}
            made = prepare(stack, dsn, [f"public.{table}" for table in tables], named)
            after.callback(made.remove)
            return made

        yield make


@pytest.mark.parametrize(
    ("table", "cause", "remedy"),
    [
        ("keyless", "no key", "ADD PRIMARY KEY"),
        (
            "mute",
            "replica identity nothing",
            'ALTER TABLE "public"."mute" REPLICA IDENTITY DEFAULT',
        ),
        ("passing", "unlogged table", "tables only"),
        ("seen", "found view", "tables only"),
        ("absent", "a table of that name", "public.keyed"),
    ],
)
def test_a_table_that_cannot_be_captured(
    source: Prepare, table: str, cause: str, remedy: str
) -> None:
    refused = source(table)
    with pytest.raises(Misconfigured) as error:
        refused.start()
    assert cause in error.value.message
    assert remedy in error.value.remedy
    assert refused.connect.config(refused.connector) is None
    with connected(refused.dsn) as connection:
        found = connection.execute("SELECT count(*) AS n FROM pg_publication").fetchone()
        assert found == {"n": 0}


def test_a_declared_key_needs_full_identity_and_its_columns(source: Prepare) -> None:
    with pytest.raises(Misconfigured, match="replica identity default") as error:
        source("keyless", keyless=("a",)).start()
    assert "REPLICA IDENTITY FULL" in error.value.remedy
    with pytest.raises(Misconfigured, match="no column nowhere"):
        source("keyless", keyless=("nowhere",)).start()


def test_generated_columns_are_noted_but_no_obstacle(source: Prepare) -> None:
    made = source("computed")
    checks = capture.check(made.source, made.dsn, capture_site(made.settings).placement)
    (note,) = [check for check in checks if not check.ok and "event triggers" not in check.required]
    assert note.advice
    assert "twice" in note.found


def test_a_role_without_rights(source: Prepare) -> None:
    made = source("keyed")
    with connected(made.dsn) as connection:
        connection.execute("DROP ROLE IF EXISTS weak")
        connection.execute("CREATE ROLE weak LOGIN PASSWORD 'weak'")
    try:
        weak = psycopg.conninfo.make_conninfo(made.dsn, user="weak", password="weak")
        with pytest.raises(Misconfigured) as error:
            capture.ensure(
                made.source,
                SourceAccess(dsn=weak),
                capture_site(made.settings).placement,
                made.connect,
            )
        assert "REPLICATION is required" in error.value.message
        assert 'ALTER ROLE "weak" REPLICATION' in error.value.remedy
        assert "GRANT CREATE ON DATABASE" in error.value.remedy
        assert 'GRANT SELECT ON "public"."keyed" TO "weak"' in error.value.remedy
    finally:
        with connected(made.dsn) as connection:
            connection.execute("DROP ROLE weak")


def test_a_database_that_does_not_answer(source: Prepare) -> None:
    made = source("keyed")
    away = psycopg.conninfo.make_conninfo(made.dsn, port="1")
    with pytest.raises(Unavailable, match=r"does not answer at 127\.0\.0\.1:1/"):
        capture.ensure(
            made.source, SourceAccess(dsn=away), capture_site(made.settings).placement, made.connect
        )


@pytest.mark.matrix
def test_a_lock_names_its_holder(source: Prepare) -> None:
    made = source("keyed")
    with psycopg.connect(made.dsn, application_name="the holder") as holder:
        holder.execute("ALTER TABLE keyed ADD later int")
        with pytest.raises(Unavailable) as error:
            made.start()
        assert f"held by pid {holder.info.backend_pid} (the holder" in error.value.message
        assert "ALTER TABLE keyed ADD later int" in error.value.message


@pytest.mark.matrix
def test_an_open_transaction_that_the_slot_waits_for_is_named(source: Prepare) -> None:
    made = source("keyed")
    failed: list[PenstockError] = []

    def begin() -> None:
        try:
            made.start()
        except PenstockError as error:
            failed.append(error)

    with psycopg.connect(made.dsn, application_name="the writer") as writer:
        writer.execute("INSERT INTO keyed VALUES (1, 'open')")
        started = threading.Thread(target=begin)
        started.start()
        started.join(60)
        assert not started.is_alive()
        (error,) = failed
        assert f"waits for open transactions: pid {writer.info.backend_pid} (the writer" in str(
            error
        )
    # The writer has ended: it goes on by itself, and the row is there once.
    made.await_snapshot()
    made.await_stream()
    assert made.current("public.keyed").to_pylist() == [{"id": 1, "v": "open"}]


def test_a_slot_that_is_gone_is_never_made_anew_quietly(source: Prepare) -> None:
    made = source("keyed")
    made.start()
    made.await_snapshot()
    made.await_stream()
    name = replication_name(made.settings.name, made.source.name)
    made.connect.stop(made.connector)
    made.connect.await_status(made.connector, lambda s: s.task is None, timeout_s=60)
    with connected(made.dsn) as connection:
        until(lambda: slot(connection, name).active_pid is None, "nobody reads the slot")
        drop_slot(connection, name)
    with pytest.raises(Incompatible) as error:
        made.start()
    assert "slot-lost" in error.value.message
    assert f"source resnapshot {made.source.name}" in error.value.remedy
