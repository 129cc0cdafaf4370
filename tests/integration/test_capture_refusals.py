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
from cdc.options import TableOptions
from cdc.replication import drop_slot, slot
from cdc.table_checks import key_columns, table_checks
from kernel.errors import Incompatible, Misconfigured, PenstockError, Unavailable
from tests.support.services.waiting import until
from tests.support.sources.capturing import Captured, prepare

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, v text NOT NULL);
CREATE TABLE keyless (a int, b text);
CREATE TABLE mute (id int PRIMARY KEY); ALTER TABLE mute REPLICA IDENTITY NOTHING;
CREATE UNLOGGED TABLE passing (id int PRIMARY KEY);
CREATE VIEW seen AS SELECT 1 AS one;
CREATE TABLE computed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE mirrored (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) VIRTUAL);
ALTER TABLE mirrored REPLICA IDENTITY FULL;
CREATE TABLE folded (mail text, low text GENERATED ALWAYS AS (lower(mail)) STORED PRIMARY KEY);
CREATE TABLE visits (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE visits_1 PARTITION OF visits FOR VALUES FROM (1) TO (9);
CREATE TABLE covering (id int, note text, tags text[], PRIMARY KEY (id) INCLUDE (note, tags));
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
        (
            "mirrored",
            "twice: PostgreSQL would refuse each UPDATE and DELETE of the application",
            'ALTER TABLE "public"."mirrored" REPLICA IDENTITY DEFAULT',
        ),
        ("folded", "low: not in the stream of changes", "of ordinary columns"),
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


def test_a_declared_key_beside_a_primary_key_needs_full_identity_too(source: Prepare) -> None:
    """A DELETE tells the primary key alone, and an UPDATE nothing of what the row had."""
    with pytest.raises(Misconfigured, match="declared v: a DELETE tells id alone") as error:
        source("keyed", keyed=("v",)).start()
    assert 'ALTER TABLE "public"."keyed" REPLICA IDENTITY FULL' in error.value.remedy
    made = source("keyed", keyed=("id",))
    found = capture.check(made.source, made.dsn, capture_site(made.settings).placement)
    assert not any("declared id" in each.found for each in found)


def test_generated_columns_are_noted_but_no_obstacle(source: Prepare) -> None:
    made = source("computed")
    checks = capture.check(made.source, made.dsn, capture_site(made.settings).placement)
    (note,) = [check for check in checks if not check.ok and "event triggers" not in check.required]
    assert note.advice
    assert "twice" in note.found


def test_columns_beside_a_key_in_its_index_are_no_part_of_it(source: Prepare) -> None:
    with connected(source("covering").dsn) as connection:
        assert key_columns(connection, "public.covering") == ("id",)


def test_a_partition_beside_its_root_is_refused(source: Prepare) -> None:
    """PostgreSQL tells of its rows as of the root's: its own table would quietly grow old."""
    with pytest.raises(Misconfigured, match=r"a partition of public\.visits, which has all"):
        source("visits", "visits_1").start()
    alone = source("visits_1")
    checks = capture.check(alone.source, alone.dsn, capture_site(alone.settings).placement)
    assert not any("partition" in each.required for each in checks)


def test_no_repair_asks_for_an_identity_that_does_harm(source: Prepare) -> None:
    """Under FULL the application could change no row of a table with a generated column."""
    with connected(source("computed").dsn) as connection:
        options = TableOptions(hash=("twice",))
        found = table_checks(connection, "public.computed", key=(), options=options)
    (wants_full,) = [each for each in found if "REPLICA IDENTITY FULL, for" in each.required]
    assert wants_full.repair is None
    assert "Exclude them" in (wants_full.fix or "")


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
