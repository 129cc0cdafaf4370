"""Publication and slot of a source: made, looked at and removed by us, never by the connector.

The slot itself is made by the connector at its first start, in one step with the snapshot that it
exports: only so does the snapshot have an exact place in the stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc.database import Connection, split_table
from kernel.errors import Unavailable

_LOCK_TIMEOUT = "5s"
_ALL = "insert, update, delete, truncate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A replication slot. `lag_bytes`: WAL written that the connector has not confirmed.

    `retained_bytes`: WAL that the slot keeps on disk. `wal_status` `lost`: rows are gone for good.
    """

    name: str
    plugin: str
    database: str
    active_pid: int | None
    wal_status: str
    lag_bytes: int
    retained_bytes: int
    confirmed_lsn: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A session that others wait for."""

    pid: int
    application: str
    state: str
    age_s: int
    query: str

    def __str__(self) -> str:
        return (
            f"pid {self.pid} ({self.application or 'no application name'}, {self.state}, "
            f"transaction open for {self.age_s} s): {self.query}"
        )


def ensure_publication(
    connection: Connection, name: str, tables: Sequence[str], *, publish: str = _ALL
) -> bool:
    """Make the publication cover exactly `tables`; return whether it had to change.

    Raises `Unavailable` naming the session that holds a lock which this needs.
    """
    wanted = sorted(split_table(table) for table in tables)
    found = connection.execute(
        "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,)
    ).fetchall()
    exists = connection.execute(
        "SELECT 1 AS there FROM pg_publication WHERE pubname = %s", (name,)
    ).fetchone()
    listed = sql.SQL(", ").join(sql.Identifier(*table) for table in wanted)
    options = sql.SQL("publish = {}, publish_via_partition_root = true").format(
        sql.Literal(publish)
    )
    if exists is None:
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})").format(
            sql.Identifier(name), listed, options
        )
    elif sorted((str(row["schemaname"]), str(row["tablename"])) for row in found) != wanted:
        statement = sql.SQL("ALTER PUBLICATION {} SET TABLE {}").format(
            sql.Identifier(name), listed
        )
    else:
        return False
    _locked(connection, statement, wanted)
    return True


def drop_publication(connection: Connection, name: str) -> None:
    """Drop the publication where there is one."""
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))


def slot(connection: Connection, name: str) -> Slot | None:
    """Look at a slot; None when there is none."""
    row = connection.execute(
        """
        SELECT slot_name, plugin, database, active_pid, coalesce(wal_status, 'unknown') AS status,
               pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint AS lag,
               pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS retained,
               confirmed_flush_lsn::text AS confirmed
          FROM pg_replication_slots WHERE slot_name = %s
        """,
        (name,),
    ).fetchone()
    if row is None:
        return None
    active = row["active_pid"]
    return Slot(
        name=str(row["slot_name"]),
        plugin=str(row["plugin"]),
        database=str(row["database"]),
        active_pid=None if active is None else int(str(active)),
        wal_status=str(row["status"]),
        lag_bytes=int(str(row["lag"] or 0)),
        retained_bytes=int(str(row["retained"] or 0)),
        confirmed_lsn=None if row["confirmed"] is None else str(row["confirmed"]),
    )


def drop_slot(connection: Connection, name: str) -> bool:
    """Drop a slot that nothing reads; return whether there was one.

    Raises `Unavailable` while a connector still reads it.
    """
    found = slot(connection, name)
    if found is None:
        return False
    try:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    except psycopg.errors.ObjectInUse as error:
        raise Unavailable(
            f"slot {name} is still read by pid {found.active_pid}",
            remedy="Wait until the connector has stopped, then repeat the command.",
        ) from error
    return True


def slot_blockers(connection: Connection, name: str) -> tuple[Blocker, ...]:
    """Return the sessions that keep the slot from being made: it waits for open writers."""
    return _blockers(
        connection,
        "SELECT unnest(pg_blocking_pids(pid)) FROM pg_stat_activity"
        " WHERE backend_type = 'walsender' AND query ILIKE %s",
        (f"CREATE_REPLICATION_SLOT%{name}%",),
    )


def _locked(
    connection: Connection, statement: sql.Composed, tables: Sequence[tuple[str, str]]
) -> None:
    try:
        connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'")
        connection.execute(statement)
    except psycopg.errors.LockNotAvailable as error:
        names = [sql.Identifier(*table).as_string(connection) for table in tables]
        holders = _blockers(
            connection,
            "SELECT pid FROM pg_locks WHERE granted AND pid <> pg_backend_pid()"
            " AND relation = ANY (%s::text[]::regclass[]::oid[])",
            (names,),
        )
        who = "; ".join(map(str, holders)) or "a session that has ended meanwhile"
        raise Unavailable(
            f"a lock on {', '.join(names)} was not to be had in {_LOCK_TIMEOUT}: held by {who}",
            remedy="End that transaction (SELECT pg_terminate_backend(PID)) and repeat.",
        ) from error
    finally:
        connection.execute("RESET lock_timeout")


def _blockers(
    connection: Connection, pids: str, parameters: tuple[object, ...]
) -> tuple[Blocker, ...]:
    rows = connection.execute(
        f"""
        SELECT pid, application_name, coalesce(state, '-') AS state, left(query, 120) AS query,
               coalesce(extract(epoch FROM clock_timestamp() - xact_start), 0)::int AS age
          FROM pg_stat_activity WHERE pid IN ({pids}) AND pid <> pg_backend_pid()
         ORDER BY xact_start
        """.encode(),
        parameters,
    ).fetchall()
    return tuple(
        Blocker(
            pid=int(str(row["pid"])),
            application=str(row["application_name"]),
            state=str(row["state"]),
            age_s=int(str(row["age"])),
            query=" ".join(str(row["query"]).split()),
        )
        for row in rows
    )
