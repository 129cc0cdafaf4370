"""Who holds a lock is named, without what Penstock's own readers have in their queries."""

from __future__ import annotations

import hashlib

import psycopg
import pytest
from psycopg import sql

from cdc import slots
from cdc.database import connected
from cdc.masking import hand_salt, select_list
from cdc.options import TableOptions
from cdc.replication import ensure_publication
from cdc.snapshot.slot import exported_snapshot
from kernel.errors import Unavailable

SALT = "0123456789abcdef"
READING = sql.SQL("SELECT {} FROM t").format(sql.Literal(SALT))


@pytest.mark.parametrize("own", [True, False], ids=["own", "another's"])
def test_a_reader_of_our_own_is_named_without_its_query(
    postgres_dsn: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.replication._LOCK_TIMEOUT", "200ms")
    with connected(postgres_dsn) as connection:
        connection.execute("CREATE TABLE t (mail text PRIMARY KEY)")
        name = "penstock" if own else "reporting"
        with psycopg.connect(postgres_dsn, application_name=name) as reader:
            reader.execute("LOCK TABLE t IN SHARE MODE")
            reader.execute(READING)
            pid = reader.info.backend_pid
            with pytest.raises(Unavailable) as error:
                ensure_publication(connection, "p", ["public.t"])
    said = str(error.value)
    assert f"pid {pid} ({name}, idle in transaction" in said
    assert (SALT in said) is not own
    assert "s): SELECT" in said


def test_the_salt_of_hashed_columns_is_in_no_query(postgres_dsn: str) -> None:
    options = TableOptions(hash=("mail",))
    query = sql.SQL("SELECT {} FROM t").format(select_list("public.t", ["mail"], options))
    with connected(postgres_dsn) as reader, connected(postgres_dsn) as onlooker:
        reader.execute("CREATE TABLE t (mail text PRIMARY KEY)")
        reader.execute("INSERT INTO t VALUES ('a@b')")
        hand_salt(reader, options, SALT)
        seen = []
        for statement in (None, query):
            found = reader.execute(statement).fetchone() if statement else None
            seen += onlooker.execute(
                "SELECT query FROM pg_stat_activity WHERE pid = %s", (reader.info.backend_pid,)
            ).fetchall()
    assert found == {"mail": hashlib.sha256(f"{SALT}a@b".encode()).hexdigest()}
    assert "set_config" in str(seen[0])
    assert "sha256" in str(seen[1])
    assert SALT not in str(seen)


@pytest.mark.matrix
def test_what_keeps_a_slot_from_being_made_is_named_so_too(postgres_dsn: str) -> None:
    with connected(postgres_dsn) as connection:
        connection.execute("CREATE TABLE t (mail text PRIMARY KEY)")
    with psycopg.connect(postgres_dsn, application_name="penstock") as writer:
        writer.execute("INSERT INTO t VALUES ('a')")
        writer.execute(READING)
        pid = writer.info.backend_pid
        with pytest.raises(Unavailable) as error, exported_snapshot(postgres_dsn, timeout_s=1.0):
            pass
    assert f"pid {pid} (penstock, idle in transaction" in str(error.value)
    assert SALT not in str(error.value)


def test_a_prepared_transaction_is_named_wherever_it_is_waited_for(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to no session, and may have been forgotten a year ago."""
    monkeypatch.setattr("cdc.replication._LOCK_TIMEOUT", "200ms")
    monkeypatch.setattr(slots, "_MAKE_TIMEOUT_S", 0.5)
    with connected(postgres_dsn) as connection:
        connection.execute("CREATE TABLE t (mail text PRIMARY KEY)")
        connection.execute("BEGIN; LOCK TABLE t; INSERT INTO t VALUES ('a')")
        connection.execute("PREPARE TRANSACTION 'it''s old'")
        try:
            with pytest.raises(Unavailable) as locked:
                ensure_publication(connection, "p", ["public.t"])
            with pytest.raises(Unavailable) as made:
                slots.make_slot(connection, "penstock_test_prepared")
            with pytest.raises(Unavailable) as read, exported_snapshot(postgres_dsn, timeout_s=1.0):
                pass
        finally:
            connection.execute("ROLLBACK PREPARED 'it''s old'")
    for error in (locked, made, read):
        assert "prepared transaction it's old of postgres, since" in str(error.value)
        assert "COMMIT PREPARED 'it''s old' or ROLLBACK PREPARED ends" in str(error.value)
