"""Publication and slot of a source: made, looked at and removed by us, never by the connector.

The slot itself is made by the connector at its first start, in one step with the snapshot that it
exports: only so does the snapshot have an exact place in the stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc.database import Connection, split_table
from cdc.owners import refuse_other, sign
from kernel.errors import Misconfigured, Unavailable

_LOCK_TIMEOUT = "5s"
_ALL = "insert, update, delete, truncate"
_COLUMN_LISTS = 150000
"""Lists of columns and filters of rows came with PostgreSQL 15; the catalog had neither before."""
_INVALIDATION_REASONS = 170000


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A replication slot. `lag_bytes`: WAL written that the connector has not confirmed.

    `retained_bytes`: WAL that the slot keeps on disk. `wal_status` `lost`: rows are gone for good;
    `invalidated` says why, where the server tells.
    """

    name: str
    plugin: str
    database: str
    active_pid: int | None
    wal_status: str
    lag_bytes: int
    retained_bytes: int
    confirmed_lsn: str | None
    invalidated: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """A session that others wait for. `query` is its beginning; of Penstock's own, one word."""

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


def published(connection: Connection, name: str) -> dict[str, tuple[str, ...] | None] | None:
    """Return what a publication covers: table -> its listed columns, None where it has no list.

    A table of which rows are filtered is not covered, nor one whose partitions come under names of
    their own. None when there is no such publication.
    """
    exists = connection.execute(
        "SELECT 1 AS there FROM pg_publication WHERE pubname = %s", (name,)
    ).fetchone()
    if exists is None:
        return None
    lists = connection.info.server_version >= _COLUMN_LISTS
    listed = "r.prattrs" if lists else "NULL::int2vector"
    # Of one without partitions all comes: a publication made by hand lacks that option, and may be.
    unfiltered = "r.prqual IS NULL" if lists else "true"
    rows = connection.execute(
        f"""
        SELECT n.nspname || '.' || c.relname AS name,
               CASE WHEN {listed} IS NOT NULL THEN ARRAY(
                 SELECT a.attname::text FROM pg_attribute a
                  WHERE a.attrelid = c.oid AND a.attnum = ANY ({listed}) ORDER BY a.attnum) END
               AS columns
          FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
          JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE p.pubname = %s AND (p.pubviaroot OR c.relkind <> 'p') AND {unfiltered}
        """.encode(),
        (name,),
    ).fetchall()
    found: dict[str, tuple[str, ...] | None] = {}
    for row in rows:
        columns = row["columns"]
        found[str(row["name"])] = tuple(map(str, columns)) if isinstance(columns, list) else None
    return found


def wholly_published(
    connection: Connection, name: str, *, publish: str = _ALL
) -> dict[str, tuple[str, ...] | None] | None:
    """Return what `published` does, of which every change arrives.

    That is nothing where the publication leaves out an action of `publish`.
    """
    found = published(connection, name)
    if not found:
        return found
    row = connection.execute(
        """
        SELECT concat_ws(', ', CASE WHEN pubinsert THEN 'insert' END,
                 CASE WHEN pubupdate THEN 'update' END, CASE WHEN pubdelete THEN 'delete' END,
                 CASE WHEN pubtruncate THEN 'truncate' END) = %s AS whole
          FROM pg_publication WHERE pubname = %s
        """,
        (publish, name),
    ).fetchone()
    return found if row is not None and row["whole"] else {}


def ensure_publication(
    connection: Connection,
    name: str,
    tables: Sequence[str],
    *,
    publish: str = _ALL,
    columns: Mapping[str, tuple[str, ...]] | None = None,
    owner: str | None = None,
) -> tuple[str, ...]:
    """Make the publication cover exactly `tables`, with `columns` where those are listed.

    `owner` is the connector that it is for. Returns the tables that joined, or whose list of
    columns grew: what happened to them before is not in the stream. Raises `Unavailable` naming the
    session that holds a lock which this needs, `Conflict` where it is another connector's.
    """
    if owner is not None:
        refuse_other(connection, name, owner)
    lists = columns or {}
    wanted = {".".join(split_table(table)): lists.get(table) for table in tables}
    found = wholly_published(connection, name, publish=publish)
    options = sql.SQL("publish = {}, publish_via_partition_root = true").format(
        sql.Literal(publish)
    )
    listed = sql.SQL(", ").join(_member(table, wanted[table]) for table in sorted(wanted))
    if found is None:
        statement = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH ({})").format(
            sql.Identifier(name), listed, options
        )
    elif _sets(found) != _sets(wanted):
        statement = sql.SQL(
            "ALTER PUBLICATION {0} SET TABLE {1}; ALTER PUBLICATION {0} SET ({2})"
        ).format(sql.Identifier(name), listed, options)
    else:
        _sign(connection, name, owner)
        return ()
    try:
        _locked(connection, statement, [split_table(table) for table in sorted(wanted)])
    except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
        if found is not None:
            raise
        # A pipeline and a command began at once, and the other one was first.
        return ensure_publication(
            connection, name, tables, publish=publish, columns=columns, owner=owner
        )
    except psycopg.errors.InsufficientPrivilege as error:
        raise Misconfigured(
            f"publication {name} cannot be made to cover {', '.join(sorted(wanted))}:"
            f" {error.diag.message_primary}",
            remedy="As the owner of the tables or a superuser: penstock source check NAME"
            " --fix-as DSN",
        ) from error
    _sign(connection, name, owner)
    before = found or {}
    return tuple(
        table for table in wanted if table not in before or _grew(before[table], wanted[table])
    )


def _sign(connection: Connection, name: str, owner: str | None) -> None:
    if owner is not None:
        sign(connection, name, owner)


def _member(table: str, columns: Sequence[str] | None) -> sql.Composed:
    # Without ONLY the tables that inherit come along: PostgreSQL refuses UPDATEs of them where
    # they have no key of their own, and nobody reads their changes.
    name = sql.SQL("ONLY {}").format(sql.Identifier(*split_table(table)))
    if columns is None:
        return name
    return sql.SQL("{} ({})").format(name, sql.SQL(", ").join(map(sql.Identifier, columns)))


def _sets(members: Mapping[str, Sequence[str] | None]) -> dict[str, frozenset[str] | None]:
    return {t: None if listed is None else frozenset(listed) for t, listed in members.items()}


def _grew(before: Sequence[str] | None, now: Sequence[str] | None) -> bool:
    return before is not None and (now is None or not set(now) <= set(before))


def drop_publication(connection: Connection, name: str) -> bool:
    """Drop the publication; return whether there was one."""
    if published(connection, name) is None:
        return False
    connection.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return True


def withdraw_refusing(connection: Connection, name: str) -> tuple[str, ...]:
    """Take tables out of a publication whose changes PostgreSQL refuses to everybody meanwhile.

    That is where a row has no identity that could be told. Returns which they were.
    """
    rows = connection.execute(
        """
        SELECT n.nspname AS schema, c.relname AS name
          FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
          JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE p.pubname = %s AND EXISTS (
           SELECT FROM pg_class l
            WHERE (l.oid = c.oid OR l.oid IN (
                    SELECT t.relid FROM pg_partition_tree(c.oid) t WHERE t.isleaf))
              AND CASE l.relreplident
               WHEN 'n' THEN true
               WHEN 'd' THEN NOT EXISTS (
                 SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisprimary
                    AND i.indimmediate)
               WHEN 'i' THEN NOT EXISTS (
                 SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indisreplident)
               ELSE current_setting('server_version_num')::int >= 180000 AND EXISTS (
                 SELECT FROM pg_attribute a WHERE a.attrelid = l.oid AND a.attgenerated <> ''
                    AND NOT a.attisdropped) END)
        """,
        (name,),
    ).fetchall()
    gone = [(str(row["schema"]), str(row["name"])) for row in rows]
    for table in gone:
        drop = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}")
        connection.execute(drop.format(sql.Identifier(name), sql.Identifier(*table)))
    return tuple(map(".".join, gone))


def slot(connection: Connection, name: str) -> Slot | None:
    """Look at a slot; None when there is none."""
    newer = connection.info.server_version >= _INVALIDATION_REASONS
    reason = "invalidation_reason" if newer else "NULL::text"
    row = connection.execute(
        f"""
        SELECT slot_name, plugin, database, active_pid, coalesce(wal_status, 'unknown') AS status,
               {reason} AS invalidated,
               pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint AS lag,
               pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint AS retained,
               confirmed_flush_lsn::text AS confirmed
          FROM pg_replication_slots WHERE slot_name = %s
        """.encode(),
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
        invalidated=None if row["invalidated"] is None else str(row["invalidated"]),
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


def slot_blockers(connection: Connection, name: str) -> tuple[str, ...]:
    """Return what keeps the slot from being made: it waits for open writers."""
    pids = (
        "SELECT unnest(pg_blocking_pids(pid)) AS pid FROM pg_stat_activity"
        " WHERE backend_type = 'walsender' AND query ILIKE %s"
    )
    making = (f"CREATE_REPLICATION_SLOT%{name}%",)
    sessions = tuple(map(str, _blockers(connection, pids, making)))
    # What is prepared has no process.
    without = connection.execute(f"SELECT pid FROM ({pids}) b WHERE pid = 0".encode(), making)
    return sessions + (prepared_transactions(connection) if without.fetchall() else ())


def prepared_transactions(connection: Connection) -> tuple[str, ...]:
    """Return the transactions that are prepared and not ended; each says how.

    They belong to no session, and hold back a slot in whatever database of the server they are.
    """
    rows = connection.execute(
        """
        SELECT gid, database, owner, quote_literal(gid) AS quoted,
               extract(epoch FROM clock_timestamp() - prepared)::int AS age
          FROM pg_prepared_xacts ORDER BY prepared LIMIT 5
        """
    ).fetchall()
    return tuple(
        f"prepared transaction {row['gid']} of {row['owner']}, since {row['age']} s, which in"
        f" database {row['database']} COMMIT PREPARED {row['quoted']} or ROLLBACK PREPARED ends"
        for row in rows
    )


def refuse_blocked(connection: Connection, name: str) -> None:
    """Raise `Unavailable` naming the transactions that a slot waits for, where it does."""
    blockers = slot_blockers(connection, name)
    if blockers:
        raise Unavailable(
            f"slot {name} waits for open transactions: {'; '.join(blockers)}",
            remedy="End them (SELECT pg_terminate_backend(PID)) or wait: it goes on by itself.",
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
        prepared = connection.execute(
            "SELECT 1 AS there FROM pg_locks WHERE granted AND pid IS NULL"
            " AND relation = ANY (%s::text[]::regclass[]::oid[])",
            (names,),
        ).fetchall()
        found = [*map(str, holders), *(prepared_transactions(connection) if prepared else ())]
        who = "; ".join(found) or "a session that has ended meanwhile"
        raise Unavailable(
            f"a lock on {', '.join(names)} was not to be had in {_LOCK_TIMEOUT}: held by {who}",
            remedy="End that transaction (SELECT pg_terminate_backend(PID)) and repeat.",
        ) from error
    finally:
        connection.execute("RESET lock_timeout")


def _blockers(
    connection: Connection, pids: str, parameters: tuple[object, ...]
) -> tuple[Blocker, ...]:
    # A reader's query may hold values; of our own it is enough to know that they are ours.
    rows = connection.execute(
        f"""
        SELECT pid, application_name, coalesce(state, '-') AS state,
               CASE WHEN starts_with(application_name, 'penstock')
                    THEN substring(query FROM '^\\s*\\w*') ELSE left(query, 120) END AS query,
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
            query=" ".join(str(row["query"] or "").split()),
        )
        for row in rows
    )
