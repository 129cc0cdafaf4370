"""What must be true before tables are captured, as rows: required, found, fix.

Nothing is changed here. A row that is not `ok` stops the source unless it is `advice`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cdc.database import Connection, Row, split_table
from kernel.errors import Misconfigured

OLDEST_VERSION = 140000

_MARKED_ARRAYS = ("_text", "_varchar", "_bpchar", "_json", "_jsonb", "_bytea", "_uuid")
_MARKED_NUMBERS = ("_int4", "_int8", "_date")
"""Types for which Debezium can say that an UPDATE left a large value alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. `fix` is a command or SQL; None when all is well."""

    subject: str
    required: str
    found: str
    ok: bool
    fix: str | None = None
    advice: bool = False


def refuse_unless_admitted(checks: Sequence[Check]) -> None:
    """Raise `Misconfigured` naming every check that stops the source, the first one's fix first."""
    failed = [check for check in checks if not check.ok and not check.advice]
    if not failed:
        return
    causes = "; ".join(f"{c.subject}: {c.required} is required, found {c.found}" for c in failed)
    fixes = "; ".join(check.fix for check in failed if check.fix)
    raise Misconfigured(causes, remedy=fixes or Misconfigured.remedy, failed=len(failed))


def admission(
    connection: Connection,
    *,
    tables: Sequence[str],
    slot: str,
    keys: Mapping[str, Sequence[str]],
) -> tuple[Check, ...]:
    """Check server, role and each table. `keys` declares keys of tables without a primary key."""
    checks = [*_server(connection, slot), _role(connection)]
    for table in tables:
        checks.extend(_table(connection, table, keys.get(table, ())))
    return tuple(checks)


def key_columns(connection: Connection, table: str) -> tuple[str, ...]:
    """Return the columns of a table's primary key in the key's order; empty without one."""
    schema, name = split_table(table)
    rows = connection.execute(
        """
        SELECT a.attname AS name
          FROM pg_index i
          JOIN pg_class c ON c.oid = i.indrelid
          JOIN pg_namespace n ON n.oid = c.relnamespace
          CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, place)
          JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.attnum
         WHERE i.indisprimary AND n.nspname = %s AND c.relname = %s
         ORDER BY k.place
        """,
        (schema, name),
    ).fetchall()
    return tuple(str(row["name"]) for row in rows)


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
               (SELECT count(*) FROM pg_stat_replication) AS sending,
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
    )
    yield _headroom("max_replication_slots", row["slots"], row["taken"])
    yield _headroom("max_wal_senders", row["senders"], row["sending"])
    if row["plugin"] is not None:
        sound = row["plugin"] == "pgoutput" and row["status"] not in ("lost", "unreserved")
        yield Check(
            subject=f"slot {slot}",
            required="plugin pgoutput, its WAL still there",
            found=f"{row['plugin']}, {row['status']}",
            ok=sound,
            fix=None if sound else "penstock source remove NAME --yes, then add it again",
        )


def _headroom(setting: str, limit: object, used: object) -> Check:
    free = int(str(limit)) - int(str(used))
    return Check(
        subject="server",
        required=f"one free of {setting}",
        found=f"{free} of {limit}",
        ok=free >= 1,
        fix=None if free >= 1 else f"Raise {setting} and restart the server",
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
        fix=None if row["may"] else f"ALTER ROLE {row['rolname']} REPLICATION",
    )


def _table(connection: Connection, table: str, key: Sequence[str]) -> Iterator[Check]:
    schema, name = split_table(table)
    found = connection.execute(
        """
        SELECT c.oid, c.relkind, c.relpersistence, c.relreplident,
               pg_get_userbyid(c.relowner) AS owner,
               has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS may,
               pg_has_role(c.relowner, 'USAGE') AS owns,
               EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary) AS keyed
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = %s AND c.relname = %s
        """,
        (schema, name),
    ).fetchone()
    subject = f"table {schema}.{name}"
    if found is None:
        yield Check(
            subject=subject,
            required="a table of that name",
            found="none",
            ok=False,
            fix=f"Check the name; there are: {_neighbours(connection)}",
        )
        return
    ordinary = found["relkind"] in ("r", "p") and found["relpersistence"] == "p"
    yield Check(
        subject=subject,
        required="an ordinary, logged table",
        found=_kind(found),
        ok=ordinary,
        fix=None if ordinary else "Name tables only: nothing else has a stream of changes",
    )
    if not ordinary:
        return
    yield Check(
        subject=subject,
        required="SELECT",
        found="yes" if found["may"] else "no",
        ok=bool(found["may"]),
        fix=None if found["may"] else f"GRANT SELECT ON {schema}.{name} TO CURRENT_USER",
    )
    yield Check(
        subject=subject,
        required="ownership, to put it into a publication",
        found=f"owned by {found['owner']}",
        ok=bool(found["owns"]),
        fix=None if found["owns"] else f"GRANT {found['owner']} TO CURRENT_USER",
    )
    yield _identity(subject, f"{schema}.{name}", found, key)
    yield from _columns(connection, subject, f"{schema}.{name}", found, key)


def _identity(subject: str, table: str, found: Row, key: Sequence[str]) -> Check:
    keyed, identity = bool(found["keyed"]), str(found["relreplident"])
    by_key = keyed and identity in ("d", "f")
    declared = bool(key) and identity == "f"
    has = "primary key" if keyed else f"declared key {', '.join(key)}" if key else "no key"
    fix = None
    if not (by_key or declared):
        fix = (
            f"ALTER TABLE {table} REPLICA IDENTITY {'DEFAULT' if keyed else 'FULL'}"
            if keyed or key
            else f"ALTER TABLE {table} ADD PRIMARY KEY (…). Or ALTER TABLE {table} REPLICA IDENTITY"
            f" FULL, and declare a unique key: --key {table}:COLUMN"
        )
    return Check(
        subject=subject,
        required="a primary key, or REPLICA IDENTITY FULL and a declared key",
        found=f"{has}, replica identity {_IDENTITIES.get(identity, identity)}",
        ok=by_key or declared,
        fix=fix,
    )


_IDENTITIES = {"d": "default", "f": "full", "i": "index", "n": "nothing"}


def _columns(
    connection: Connection, subject: str, table: str, found: Row, key: Sequence[str]
) -> Iterator[Check]:
    columns = connection.execute(
        """
        SELECT a.attname, a.attnotnull, a.attgenerated, a.attstorage, a.atttypmod, t.typname,
               coalesce(d.adbin IS NOT NULL AND a.attgenerated = '', false) AS defaulted
          FROM pg_attribute a
          JOIN pg_type t ON t.oid = a.atttypid
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
         ORDER BY a.attnum
        """,
        (found["oid"],),
    ).fetchall()
    missing = [name for name in key if name not in [row["attname"] for row in columns]]
    if missing:
        yield Check(
            subject=subject,
            required="the columns of its declared key",
            found=f"no column {', '.join(missing)}",
            ok=False,
            fix="Correct --key",
        )
    unmarked = [str(row["attname"]) for row in columns if _unmarked(row)]
    if unmarked and found["relreplident"] != "f":
        yield Check(
            subject=subject,
            required="REPLICA IDENTITY FULL, for large values that an UPDATE leaves alone",
            found=f"columns {', '.join(unmarked)}, identity default",
            ok=False,
            fix=f"ALTER TABLE {table} REPLICA IDENTITY FULL",
        )
    generated = [str(row["attname"]) for row in columns if row["attgenerated"]]
    if generated:
        yield Check(
            subject=subject,
            required="no generated columns",
            found=f"{', '.join(generated)}: not in the stream of changes",
            ok=False,
            advice=True,
            fix="Compute them in a projection",
        )


def _unmarked(column: Row) -> bool:
    """Whether a value may stay out of an UPDATE without Debezium being able to say so."""
    if column["attstorage"] == "p":
        return False
    name = str(column["typname"])
    if name.startswith("_"):
        return name not in (*_MARKED_ARRAYS, *_MARKED_NUMBERS)
    # A bit string shorter than 8,000 bits is never stored out of line.
    length = int(str(column["atttypmod"]))
    return name in ("bit", "varbit") and not 0 <= length < 8000


def _kind(found: Row) -> str:
    kinds = {
        "r": "table",
        "p": "partitioned table",
        "v": "view",
        "m": "materialized view",
        "f": "foreign table",
        "S": "sequence",
    }
    kind = kinds.get(str(found["relkind"]), str(found["relkind"]))
    persistence = {"u": "unlogged ", "t": "temporary "}.get(str(found["relpersistence"]), "")
    return persistence + kind


def _neighbours(connection: Connection) -> str:
    rows = connection.execute(
        """
        SELECT schemaname || '.' || tablename AS name FROM pg_tables
         WHERE schemaname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1 LIMIT 20
        """
    ).fetchall()
    return ", ".join(str(row["name"]) for row in rows) or "none"


def _one(connection: Connection, query: str, parameters: Mapping[str, object] | None = None) -> Row:
    row = connection.execute(query.encode(), parameters).fetchone()
    return row if row is not None else {}
