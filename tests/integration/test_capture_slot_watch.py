"""A slot under watch: its numbers, its alarm, and the ways in which it stops being trusted."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from apps.capture import capture_site
from apps.settings import Settings
from cdc import slots, sources
from cdc.connect import ConnectClient
from cdc.copies import copy_requests as copies
from cdc.database import Connection, connected
from cdc.replication import Slot, slot
from cdc.slots import make_slot, next_incarnation, server_of, switch_point, watch
from cdc.upkeep.lifecycle import resnapshot
from cdc.upkeep.noted_incarnations import incarnation_of
from kernel.errors import EXIT_UNHEALTHY, Incompatible, Unavailable
from kernel.positions import lsn_from_text
from schemas.incarnations import Incarnation
from tests.support.services.waiting import until
from tests.support.sources.workspaces import Kept, Workspace
from tests.support.store import postgres
from tests.support.store.postgres import Cluster, remove_cluster

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'x');
CREATE TABLE other (id int PRIMARY KEY, v text);
"""
SLOT = "penstock_test_shop"


@pytest.fixture
def workspace(
    tmp_path: Path, stack: Settings, new_source: Callable[[str], str]
) -> Iterator[tuple[Workspace, str]]:
    dsn = new_source(TABLES)
    found = Workspace(tmp_path, stack, **{"postgres.dsn": dsn})
    found("add", found.source, "--dsn", dsn, "--tables", "a")
    yield found, dsn
    found("remove", found.source, "--yes")


def run(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def confirmed(dsn: str, name: str) -> int:
    with connected(dsn) as connection:
        at = slot(connection, name)
        assert at is not None
        return lsn_from_text(at.confirmed_lsn or "0/0")


@pytest.mark.matrix
def test_the_slot_follows_while_only_a_table_that_is_not_captured_is_written(
    workspace: tuple[Workspace, str],
) -> None:
    found, dsn = workspace
    with connected(dsn) as connection:
        before = server_of(connection).lsn
    run(dsn, "INSERT INTO other SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i")
    with connected(dsn) as connection:
        target = server_of(connection).lsn
    assert target - before > 8 * 1024**2
    until(
        lambda: confirmed(dsn, found.replication) >= target,
        "the slot follows what nobody captures",
        deadline_s=60,
    )


@pytest.mark.matrix
def test_the_keeper_tells_the_numbers_and_raises_an_alarm(
    workspace: tuple[Workspace, str], caplog: pytest.LogCaptureFixture
) -> None:
    found, dsn = workspace
    kept = Kept(found)
    assert kept.look() == "running"
    until(
        lambda: (kept.look(), kept.metric("penstock_slot_active"))[1] == 1,
        "the connector reads its slot",
        deadline_s=60,
    )
    assert kept.metric("penstock_slot_wal_status", status="reserved") == 1
    assert kept.metric("penstock_slot_alarm") == 0
    assert kept.keeper.alarms == {}

    found("pause", found.source)
    run(dsn, "INSERT INTO other SELECT i, repeat('x', 500) FROM generate_series(1, 20000) i")
    config = found.folder / "penstock.toml"
    config.write_text(f"{config.read_text()}\n[capture]\nslot_alarm_bytes = 5000000\n")
    kept = Kept(found)
    with caplog.at_level(logging.WARNING, logger="penstock.slots"):
        kept.look()
        kept.look()
    retained = kept.metric("penstock_slot_retained_bytes")
    assert retained is not None
    assert retained > 5_000_000
    assert kept.metric("penstock_slot_alarm") == 1
    (alarm,) = kept.keeper.alarms.values()
    assert "bytes of WAL" in alarm
    assert len(caplog.records) == 1
    assert found("status", found.source, code=EXIT_UNHEALTHY)["state"] == "paused"

    found("resume", found.source)
    until(
        lambda: (kept.look(), kept.metric("penstock_slot_alarm"))[1] == 0,
        "the slot is small again",
        deadline_s=60,
    )
    assert kept.keeper.alarms == {}


@pytest.mark.matrix
def test_a_slot_that_was_moved_ahead_is_lost_although_it_could_be_read(
    workspace: tuple[Workspace, str],
) -> None:
    found, dsn = workspace
    kept = Kept(found)
    assert kept.look() == "running"
    with ConnectClient(found.settings.required("connect.url")) as connect:
        until(lambda: bool(connect.offsets(found.connector)), "the connector has read something")
        connect.stop(found.connector)
        connect.await_status(found.connector, lambda s: s.task is None, timeout_s=60)
    run(dsn, "INSERT INTO a VALUES (2, 'never sent')")

    def moved() -> bool:
        move = "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())"
        try:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute(move, (found.replication,))
        except psycopg.errors.ObjectInUse:
            return False
        return True

    until(moved, "nobody reads the slot")
    with pytest.raises(Incompatible, match=r"slot-lost.*what lies between is lost"):
        found("resume", found.source)
    assert "slot-lost" in kept.look()
    # Nobody has to look at the right moment: it is noted, and a later start is refused by it.
    run(dsn, f"SELECT pg_drop_replication_slot('{found.replication}')")
    run(dsn, f"SELECT pg_create_logical_replication_slot('{found.replication}', 'pgoutput')")
    assert "slot-lost" in Kept(found).look()
    state = found("status", found.source, code=EXIT_UNHEALTHY)
    assert state["state"] == "slot-lost"
    assert "what lies between is lost" in state["reason"]
    assert state["fix"] == f"penstock source resnapshot {found.source} --yes"
    assert found("list")["sources"][0]["state"] == "slot-lost"


@pytest.mark.matrix
def test_a_new_slot_is_not_taken_for_the_lost_one_after_a_crash(
    workspace: tuple[Workspace, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, dsn = workspace
    with ConnectClient(found.settings.required("connect.url")) as connect:
        connect.stop(found.connector)
        connect.await_status(found.connector, lambda s: s.task is None, timeout_s=60)

    def dropped() -> bool:
        try:
            run(dsn, f"SELECT pg_drop_replication_slot('{found.replication}')")
        except psycopg.errors.ObjectInUse:
            return False
        return True

    until(dropped, "nobody reads the slot")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    # The new slot is there by then, and nothing is noted of it.
    source = sources.load(found.folder, found.source)
    with monkeypatch.context() as patched:
        patched.setattr(copies, "awaited", dies)
        with pytest.raises(KeyboardInterrupt):
            resnapshot(capture_site(found.settings), source)
    with connected(dsn) as connection:
        assert slot(connection, found.replication) is not None
    assert "slot-lost" in Kept(found).look()

    assert "is gone" in found("resnapshot", found.source, "--yes")["renewed"]
    noted = incarnation_of(found.lake, found.source)
    assert noted is not None
    assert (noted.slots, noted.lost) == (2, None)
    assert Kept(found).look() == "running"


@pytest.mark.matrix
def test_making_a_slot_names_the_transaction_that_it_waits_for(
    own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "_MAKE_TIMEOUT_S", 0.5)
    dsn = own_cluster.dsn("postgres")
    run(dsn, "CREATE TABLE w (i int)")
    with (
        psycopg.connect(dsn, application_name="the writer") as writer,
        connected(dsn) as connection,
    ):
        writer.execute("INSERT INTO w VALUES (1)")
        with pytest.raises(Unavailable) as error:
            make_slot(connection, SLOT)
        assert f"pid {writer.info.backend_pid} (the writer" in error.value.message
        assert slot(connection, SLOT) is None
    with connected(dsn) as connection:
        assert make_slot(connection, SLOT).name == SLOT


def test_a_pipeline_and_a_command_that_start_a_source_at_once_make_one_slot(
    own_cluster: Cluster,
) -> None:
    """Both look while none is there; the first one to make it waits for a transaction."""
    dsn = own_cluster.dsn("postgres")
    run(dsn, "CREATE TABLE w (i int)")

    def made() -> Slot:
        with connected(dsn) as connection:
            return make_slot(connection, SLOT)

    with ThreadPoolExecutor(2) as pool, connected(dsn) as connection:
        with psycopg.connect(dsn) as writer:
            writer.execute("INSERT INTO w VALUES (1)")
            starts = [pool.submit(made) for _ in range(2)]
            until(lambda: slot(connection, SLOT) is not None, "a slot is being made")
        one, other = (start.result(60) for start in starts)
    assert one.confirmed_lsn == other.confirmed_lsn is not None


def _known(dsn: str) -> Incarnation:
    with connected(dsn) as connection:
        return next_incarnation(server_of(connection), make_slot(connection, SLOT), None)


def _lost(dsn: str, known: Incarnation | None, read: int | None) -> str | None:
    offsets = {} if read is None else {"lsn": read}
    with connected(dsn) as connection:
        return watch(connection, SLOT, known=known, offsets=lambda: offsets).lost


def test_a_connector_that_reads_on_while_it_is_looked_at_has_lost_nothing(
    own_cluster: Cluster,
) -> None:
    dsn = own_cluster.dsn("postgres")
    known = _known(dsn)
    with connected(dsn) as connection:
        at = slot(connection, SLOT)
        assert at is not None
        assert at.confirmed_lsn is not None
        stands = lsn_from_text(at.confirmed_lsn)
        told = iter([stands - 100, stands, stands - 100, stands - 50])
        assert _asked(connection, known, told) is None
        assert "what lies between is lost" in str(_asked(connection, known, told))


def _asked(connection: Connection, known: Incarnation, told: Iterator[int]) -> str | None:
    return watch(connection, SLOT, known=known, offsets=lambda: {"lsn": next(told)}).lost


def test_a_server_that_was_set_back_and_another_one_are_told_apart(own_cluster: Cluster) -> None:
    dsn = own_cluster.dsn("postgres")
    known = _known(dsn)
    with connected(dsn) as connection:
        end = server_of(connection).lsn
    assert _lost(dsn, known, end) is None
    assert "it was set back" in str(_lost(dsn, known, end + 1_000_000))
    other = Incarnation(system="1", timeline=1, slots=1, since="0/0")
    assert "another server answers" in str(_lost(dsn, other, end))
    assert _lost(dsn, known.losing("for this reason", "now"), end) == "for this reason"


@pytest.mark.matrix
def test_a_standby_that_took_over_must_have_what_was_read(own_cluster: Cluster) -> None:
    dsn = own_cluster.dsn("postgres")
    known = _known(dsn)
    standby = _standby_of(own_cluster)
    there = standby.dsn("postgres")
    try:
        standby.start()
        until(lambda: _synchronised(dsn, there), "the standby keeps the slot, too")
        with connected(dsn) as connection:
            read = server_of(connection).lsn
        until(lambda: _replayed(there) >= read, "the standby has what was read")
        own_cluster.stop()
        run(there, "SELECT pg_promote()")
        with connected(there) as connection:
            server = server_of(connection)
            assert (server.timeline, server.system) == (known.timeline + 1, known.system)
            switched = switch_point(connection, server.timeline, known.timeline)
        assert switched is not None
        # What was read is in the new server, too: its slot goes on where the old one stood.
        assert _lost(there, known, read) is None
        assert _lost(there, known.on(server.timeline), switched + 1) is None
        # What was read behind the switch is in the old server only, however far the new one comes.
        run(there, "CREATE TABLE later (i int)")
        with connected(there) as connection:
            assert server_of(connection).lsn > switched + 1
        assert "it lacks what is in the lake" in str(_lost(there, known, switched + 1))
    finally:
        remove_cluster(standby)


def _synchronised(primary: str, standby: str) -> bool:
    """Let the standby take the slot over: it can only when the slot moves on."""
    run(primary, "SELECT pg_log_standby_snapshot()")
    run(primary, f"SELECT pg_replication_slot_advance('{SLOT}', pg_current_wal_lsn())")
    try:
        run(standby, "SELECT pg_sync_replication_slots()")
    except psycopg.errors.ObjectNotInPrerequisiteState:
        return False  # What the slot stands at has not come to the standby yet.
    with connected(standby) as connection:
        row = connection.execute(
            "SELECT 1 AS there FROM pg_replication_slots WHERE slot_name = %s AND NOT temporary",
            (SLOT,),
        ).fetchone()
    return row is not None


def _replayed(standby: str) -> int:
    with connected(standby) as connection:
        row = connection.execute("SELECT pg_last_wal_replay_lsn()::text AS lsn").fetchone()
    assert row is not None
    return lsn_from_text(str(row["lsn"]))


def _standby_of(primary: Cluster) -> Cluster:
    """Copy a running server; the copy follows it until it is promoted."""
    made = postgres.new_cluster()
    made.stop()
    shutil.rmtree(made.data)
    source = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
    made._run("pg_basebackup", "-d", source, "-D", str(made.data), "-R", "-C", "-S", "standby")
    with (made.data / "postgresql.auto.conf").open("a") as settings:
        settings.write("hot_standby_feedback = on\n")
    return made
