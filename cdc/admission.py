"""What must be true before tables are captured, as rows: required, found, fix.

Nothing is changed here. A row that is not `ok` stops the source unless it is `advice`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from cdc.database import Connection, Row
from kernel.errors import Misconfigured

OLDEST_VERSION = 140000
_MORE = 10
"""Slots and senders that `--fix` adds: other tools want some, too, and each needs a restart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. `fix` is a command or SQL; None when all is well.

    `repair` is the SQL that mends it, where SQL can (`cdc.repairs`); `restart` says that it counts
    only after the server was started again.
    """

    subject: str
    required: str
    found: str
    ok: bool
    fix: str | None = None
    advice: bool = False
    repair: str | None = None
    restart: bool = False


def refuse_unless_admitted(checks: Sequence[Check]) -> None:
    """Raise `Misconfigured` naming every check that stops the source, the first one's fix first."""
    failed = [check for check in checks if not check.ok and not check.advice]
    if not failed:
        return
    causes = "; ".join(f"{c.subject}: {c.required} is required, found {c.found}" for c in failed)
    fixes = "; ".join(check.fix for check in failed if check.fix)
    raise Misconfigured(causes, remedy=fixes or Misconfigured.remedy, failed=len(failed))


def server_checks(connection: Connection, name: str, *, slot: bool = True) -> tuple[Check, ...]:
    """Check the server and the role that reads it; `name` is that of slot and publication."""
    server = _server(connection, name if slot else "")
    return (*server, _role(connection), _publisher(connection, name))


def _server(connection: Connection, slot: str) -> Iterator[Check]:
    version = connection.info.server_version
    yield Check(
        subject="server",
        required="PostgreSQL 14 or newer",
        found=f"{version // 10000}.{version % 10000}",
        ok=version >= OLDEST_VERSION,
        fix=None if version >= OLDEST_VERSION else "Upgrade the server",
    )
    row = _one(
        connection,
        """
        SELECT current_setting('wal_level') AS wal_level,
               current_setting('max_replication_slots')::int AS slots,
               current_setting('max_wal_senders')::int AS senders,
               (SELECT count(*) FROM pg_replication_slots WHERE slot_name <> %(slot)s) AS taken,
               (SELECT count(*) FROM pg_stat_replication r WHERE NOT EXISTS (
                  SELECT FROM pg_replication_slots s
                   WHERE s.slot_name = %(slot)s AND s.active_pid = r.pid)) AS sending,
               (SELECT wal_status FROM pg_replication_slots WHERE slot_name = %(slot)s) AS status,
               (SELECT plugin FROM pg_replication_slots WHERE slot_name = %(slot)s) AS plugin
        """,
        {"slot": slot},
    )
    logical = row["wal_level"] == "logical"
    yield Check(
        subject="server",
        required="wal_level = logical",
        found=str(row["wal_level"]),
        ok=logical,
        fix=None if logical else "ALTER SYSTEM SET wal_level = logical; then restart the server",
        repair=None if logical else "ALTER SYSTEM SET wal_level = logical",
        restart=not logical,
    )
    yield from _headroom("max_replication_slots", row["slots"], row["taken"])
    yield from _headroom("max_wal_senders", row["senders"], row["sending"])
    if row["plugin"] is not None:
        sound = row["plugin"] == "pgoutput" and row["status"] not in ("lost", "unreserved")
        yield Check(
            subject=f"slot {slot}",
            required="plugin pgoutput, its WAL still there",
            found=f"{row['plugin']}, {row['status']}",
            ok=sound,
            fix=None if sound else "penstock source resnapshot NAME --yes",
        )


def _headroom(setting: str, limit: object, used: object) -> Iterator[Check]:
    free = int(str(limit)) - int(str(used))
    for wanted, required, advice in (
        (1, f"one free of {setting}", False),
        (2, f"a second free one of {setting}, while tables are copied or compared", True),
    ):
        there = free >= wanted
        yield Check(
            subject="server",
            required=required,
            found=f"{free} of {limit}",
            ok=there,
            fix=None if there else f"Raise {setting} and restart the server",
            repair=None if there else f"ALTER SYSTEM SET {setting} = {int(str(limit)) + _MORE}",
            restart=not there,
            advice=advice,
        )


def _role(connection: Connection) -> Check:
    row = _one(
        connection,
        """
        SELECT rolname, rolsuper OR rolreplication OR EXISTS (
                 SELECT FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
                  WHERE m.member = r.oid AND g.rolname IN ('rds_replication')
               ) AS may
          FROM pg_roles r WHERE rolname = current_user
        """,
    )
    return Check(
        subject=f"role {row['rolname']}",
        required="REPLICATION",
        found="yes" if row["may"] else "no",
        ok=bool(row["may"]),
        fix=None if row["may"] else f"ALTER ROLE {quoted(row['rolname'])} REPLICATION",
        repair=None if row["may"] else f"ALTER ROLE {quoted(row['rolname'])} REPLICATION",
    )


def _publisher(connection: Connection, publication: str) -> Check:
    row = _one(
        connection,
        """
        SELECT current_database() AS database, current_user AS role,
               has_database_privilege(current_database(), 'CREATE')
               OR EXISTS (SELECT FROM pg_publication WHERE pubname = %(name)s) AS may
        """,
        {"name": publication},
    )
    grant = f"GRANT CREATE ON DATABASE {quoted(row['database'])} TO {quoted(row['role'])}"
    return Check(
        subject=f"role {row['role']}",
        required="CREATE on the database, to make the publication",
        found="yes" if row["may"] else "no",
        ok=bool(row["may"]),
        fix=None if row["may"] else grant,
        repair=None if row["may"] else grant,
    )


def _one(connection: Connection, query: str, parameters: Mapping[str, object] | None = None) -> Row:
    row = connection.execute(query.encode(), parameters).fetchone()
    return row if row is not None else {}


def quoted(*names: object) -> str:
    """Return a name as SQL: `"Order"."Lines"`, quoted always."""
    return sql.Identifier(*map(str, names)).as_string(None)
