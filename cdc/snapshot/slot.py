"""Exact places in the stream to read tables at: a snapshot and the LSN that it stands for.

Only a logical slot knows the LSN of its snapshot: everything that committed before it is seen, and
the stream gives everything after it (`pg_current_wal_lsn()` inside a snapshot is not its LSN). The
slot made here is temporary. A connection of ours takes its snapshot over and exports it again, so
that the slot, and the WAL it keeps, are gone before the first row is read.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdc.database import Connection, connected
from cdc.replication import slot_blockers
from kernel.errors import Unavailable
from kernel.positions import lsn_from_text

MARK = "penstock.install"
"""Prefix of the message that comes behind the LSN of an announced install."""
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSnapshot:
    """A snapshot that other connections may take over, while its context is open.

    A transaction is in it if, and only if, its END has an LSN of at most `lsn`.
    """

    name: str
    lsn: int


@contextmanager
def exported_snapshot(dsn: str, *, timeout_s: float = 30.0) -> Iterator[ExportedSnapshot]:
    """Export a snapshot of now and hold it open.

    Making it waits for every transaction that is writing. Raises `Unavailable` naming those that
    are still open after `timeout_s`; needs a role with REPLICATION and a free slot and WAL sender.
    """
    with connected(dsn) as holder:
        _never_time_out(holder)
        lsn = _take_over_from_slot(holder, dsn, timeout_s)
        row = holder.execute("SELECT pg_export_snapshot() AS name").fetchone()
        assert row is not None, "a function call has one row"
        yield ExportedSnapshot(name=str(row["name"]), lsn=lsn)
        holder.execute("ROLLBACK")


def adopt(connection: Connection, name: str) -> None:
    """Begin a read-only transaction in an exported snapshot; it ends with the connection's own."""
    _never_time_out(connection)
    # A policy that hides rows from this role is an error, not a smaller table (`heed_policies`).
    connection.execute("SET row_security = off")
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(name)))


def mark(dsn: str, text: str) -> None:
    """Commit a transaction that is nothing but a message, so that a resting source's cut moves."""
    with connected(dsn) as connection:
        connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (MARK, text))


def _never_time_out(connection: psycopg.Connection[Any]) -> None:
    for setting in ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"):
        connection.execute(f"SET {setting} = 0".encode())
    if connection.info.server_version >= 170000:
        connection.execute("SET transaction_timeout = 0")


def _take_over_from_slot(holder: Connection, dsn: str, timeout_s: float) -> int:
    name = f"penstock_copy_{uuid.uuid4().hex[:16]}"
    # The walsender's simple protocol is all that this connection ever speaks.
    replication = psycopg.connect(
        make_conninfo(dsn, replication="database"),
        autocommit=True,
        connect_timeout=10,
        application_name="penstock",
    )
    try:
        _never_time_out(replication)
        made = _Making(replication, name)
        deadline = time.monotonic() + timeout_s
        while not made.done(_LOOK_S):
            if time.monotonic() > deadline:
                raise _blocked(dsn, name, timeout_s)
        lsn, snapshot = made.result()
        adopt(holder, snapshot)
        return lsn
    finally:
        # Its end drops the temporary slot; one that still waits must be told.
        replication.cancel_safe(timeout=5.0)
        replication.close()


class _Making(threading.Thread):
    """Makes the slot beside the caller, who watches the time."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]], name: str) -> None:
        super().__init__(name="snapshot-slot", daemon=True)
        self._connection = connection
        self._name = name
        self._made: tuple[int, str] | None = None
        self._error: psycopg.Error | None = None
        self.start()

    def run(self) -> None:
        # The form that every version since 10 takes.
        statement = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT")
        try:
            row = self._connection.execute(statement.format(sql.Identifier(self._name))).fetchone()
        except psycopg.Error as error:
            self._error = error
            return
        assert row is not None, "CREATE_REPLICATION_SLOT answers with a row"
        self._made = int(lsn_from_text(str(row[1]))), str(row[2])

    def done(self, wait_s: float) -> bool:
        self.join(wait_s)
        return not self.is_alive()

    def result(self) -> tuple[int, str]:
        if self._error is not None:
            raise self._error
        assert self._made is not None
        return self._made


def _blocked(dsn: str, name: str, timeout_s: float) -> Unavailable:
    with connected(dsn) as connection:
        blockers = slot_blockers(connection, name)
    who = "; ".join(blockers) or "a transaction that has ended meanwhile"
    return Unavailable(
        f"no snapshot within {timeout_s:.0f} s: it waits for {who}",
        remedy="End it (SELECT pg_terminate_backend(PID)) or wait: it is tried again by itself.",
    )
