"""A slot is lost while its source is captured: it is named, it stays so, and a command mends it.

Promise P9: a lost slot stops the source with a named reason and never resumes quietly. P4: after
the recovery every `current` table equals its source, also in what nobody will ever send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings, load
from cdc import sources
from cdc.connect import ConnectClient
from cdc.database import connected
from cdc.replication import slot
from cdc.upkeep.noted_incarnations import incarnation_of
from kernel.errors import EXIT_NEEDS_CONFIRMATION, EXIT_UNHEALTHY, Incompatible
from tests.support.services.waiting import until
from tests.support.sources.copying import Copied
from tests.support.sources.workspaces import Kept

TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text);
INSERT INTO accounts SELECT i, 100, repeat('x', 50) FROM generate_series(1, 500) i;
CREATE TABLE transfers (id int PRIMARY KEY, amount int);
INSERT INTO transfers VALUES (1, 1), (2, 2), (3, 3);
CREATE TABLE filler (v text);
"""
NAMES = ("public.accounts", "public.transfers")
SEEN = (
    "UPDATE accounts SET balance = balance - 5 WHERE id = 7",
    "INSERT INTO transfers VALUES (10, 5)",
)
NEVER_SENT = (
    "DELETE FROM accounts WHERE id BETWEEN 100 AND 150",
    "UPDATE accounts SET balance = 0 WHERE id = 7",
    "DELETE FROM transfers WHERE id = 2",
    "INSERT INTO transfers VALUES (11, 6)",
)
AFTERWARDS = (
    "INSERT INTO accounts VALUES (1000, 1, 'after')",
    "UPDATE transfers SET amount = 99 WHERE id = 11",
    "DELETE FROM accounts WHERE id = 200",
)

Make = Callable[[str], Copied]


@pytest.fixture
def captured(
    tmp_path: Path, stack: Settings, spark: SparkSession, new_source: Callable[[str], str]
) -> Iterator[Make]:
    made: list[Copied] = []

    def make(snapshot: str) -> Copied:
        dsn = new_source(TABLES)
        # Its own store is that database, too: there are no events, so the keeper has no outbox.
        settings = load(stack.workspace, postgres__dsn=dsn)
        made.append(Copied(tmp_path, settings, spark, dsn, NAMES, snapshot=snapshot))
        return made[0]

    yield make
    for each in made:
        each.close()


def equal_at_first(source: Copied) -> Kept:
    """Capture and mirror until source and lake are equal."""
    kept = Kept(source.workspace)
    source.start()
    assert kept.look() == "running"
    with source.copying():
        source.catch_up()
        source.execute(*SEEN)
        source.catch_up()
    assert source.differing() == []
    return kept


def lost_for_everybody(source: Copied, kept: Kept, reason: str) -> None:
    """The source is in its named state, for whoever looks and whoever starts anew."""
    until(lambda: "slot-lost" in kept.look(), "the keeper sees it", deadline_s=60)
    assert reason in kept.look()
    assert kept.metric("penstock_slot_alarm") == 1
    known = incarnation_of(source.lake, source.name)
    assert known is not None
    assert reason in str(known.lost)
    # Nobody who restarts sees it otherwise, and nothing that starts makes it run.
    assert reason in Kept(source.workspace).look()
    with pytest.raises(Incompatible, match="is slot-lost"):
        source.start()
    with pytest.raises(Incompatible, match="is slot-lost"):
        source.workspace("resume", source.name)
    state = source.workspace("status", source.name, code=EXIT_UNHEALTHY)
    assert (state["state"], state["healthy"]) == ("slot-lost", False)
    assert reason in state["reason"]
    assert state["fix"] == f"penstock source resnapshot {source.name} --yes"
    with ConnectClient(source.workspace.settings.required("connect.url")) as connect:
        assert connect.status(source.workspace.connector).connector == "STOPPED"


def recovers(source: Copied, kept: Kept, reason: str) -> None:
    """The command gives it a new slot; every table equals its source again, and stays so."""
    before = incarnation_of(source.lake, source.name)
    assert before is not None
    source.workspace("resnapshot", source.name, code=EXIT_NEEDS_CONFIRMATION)
    done = source.workspace("resnapshot", source.name, "--yes")
    assert reason in done["renewed"]
    assert sorted(done["tables"]) == sorted(NAMES)
    now = incarnation_of(source.lake, source.name)
    assert now is not None
    assert (now.slots, now.lost) == (before.slots + 1, None)
    assert kept.look() == "running"
    installed = source.installed()
    with source.copying():
        source.run_until_installed(installed + len(NAMES))
        source.catch_up()
        assert source.differing() == []
        source.execute(*AFTERWARDS)
        source.catch_up()
    assert source.differing() == []
    assert source.workspace("status", source.name)["state"] == "runs"
    assert Kept(source.workspace).look() == "running"


@pytest.mark.matrix
def test_p9_p4_a_slot_is_dropped_while_it_is_read(captured: Make) -> None:
    source = captured(sources.CONNECTOR)
    kept = equal_at_first(source)
    name = source.workspace.replication

    def dropped() -> bool:
        query = (
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s"
        )
        try:
            with psycopg.connect(source.dsn, autocommit=True) as connection:
                connection.execute(query.encode(), (name,))
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    until(dropped, "the slot is dropped", deadline_s=60)
    source.execute(*NEVER_SENT)
    lost_for_everybody(source, kept, f"slot {name} is gone")
    # What is in the lake is whole, only old.
    source.epochs.run()
    assert sorted(source.differing()) == sorted(NAMES)
    recovers(source, kept, f"slot {name} is gone")


@pytest.mark.matrix
def test_p9_p4_a_slot_is_invalidated_because_it_keeps_too_much(captured: Make) -> None:
    source = captured(sources.COPY)
    kept = equal_at_first(source)
    name = source.workspace.replication
    source.workspace("pause", source.name)
    source.execute(*NEVER_SENT)
    try:
        _server(source.dsn, "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        _server(source.dsn, "SELECT pg_reload_conf()")

        def invalidated() -> bool:
            _server(
                source.dsn,
                "INSERT INTO filler SELECT repeat('x', 900) FROM generate_series(1, 20000)",
            )
            _server(source.dsn, "SELECT pg_switch_wal()")
            _server(source.dsn, "CHECKPOINT")
            with connected(source.dsn) as connection:
                at = slot(connection, name)
            return at is not None and at.wal_status == "lost"

        until(invalidated, "the server gives up the slot's WAL", deadline_s=60)
    finally:
        _server(source.dsn, "ALTER SYSTEM RESET max_slot_wal_keep_size")
        _server(source.dsn, "SELECT pg_reload_conf()")
    lost_for_everybody(source, kept, f"slot {name} has lost its WAL (wal_removed)")
    recovers(source, kept, f"slot {name} has lost its WAL")


@pytest.mark.matrix
def test_p4_a_source_that_is_added_again_replaces_what_the_lake_has(captured: Make) -> None:
    source = captured(sources.CONNECTOR)
    kept = equal_at_first(source)
    declared = source.workspace.file.read_text()
    password = source.workspace.folder / sources.SECRETS / source.name
    secret = password.read_text() if password.exists() else None
    source.workspace("remove", source.name, "--yes")
    source.execute(*NEVER_SENT)

    source.workspace.file.write_text(declared)
    if secret is not None:
        password.write_text(secret)
    source.start()
    assert kept.look() == "running"
    now = incarnation_of(source.lake, source.name)
    assert now is not None
    assert now.slots == 2
    installed = source.installed()
    with source.copying():
        source.run_until_installed(installed + len(NAMES))
        source.catch_up()
    assert source.differing() == []


def _server(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())
