"""DDL of the source, told in order: an event trigger writes a logical message for each change.

    ALTER TABLE … -> event trigger -> pg_logical_emit_message(true, 'penstock.ddl', JSON) -> WAL

The message stands in the WAL where the DDL does, inside its transaction, so that it comes to the
log between the rows written before it and the rows written after it. Its JSON is what
`schemas.schema_change.parse_schema_change` reads: the table after the change, columns by attnum.

What is installed is in schema `penstock` of the source database, may be shared by several sources,
never makes anybody's DDL fail (an error becomes a warning), and goes without a trace. Creating an
event trigger takes a superuser, or what a managed service lets do it: whether this role may is
found out by trying, in a transaction that is rolled back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files

import psycopg
from psycopg import sql

from cdc.database import Connection, split_table
from kernel.errors import Misconfigured

PREFIX = "penstock.ddl"
"""Prefix of the logical messages that the event triggers write."""
TRIGGERS = ("penstock_ddl_v1", "penstock_drop_v1", "penstock_rewrite_v1")

INSTALL = files("cdc").joinpath("ddl.sql").read_text(encoding="utf-8")
_MARK = hashlib.sha256(INSTALL.encode()).hexdigest()[:16]
_LOCK = "SELECT pg_advisory_xact_lock(hashtext('penstock.ddl'))"


class _NotKept(Exception):
    """Ends the transaction of a trial."""


def installed(connection: Connection) -> bool:
    """Whether the event triggers of this version are there, unchanged and enabled."""
    row = connection.execute(
        """
        SELECT count(*) = %s
               AND bool_and(obj_description(f.oid, 'pg_proc') LIKE '%%' || %s) AS there
          FROM pg_event_trigger t JOIN pg_proc f ON f.oid = t.evtfoid
         WHERE t.evtname = ANY (%s) AND t.evtenabled = 'A'
        """,
        (len(TRIGGERS), _MARK, list(TRIGGERS)),
    ).fetchone()
    return row is not None and bool(row["there"])


def may_install(connection: Connection) -> bool:
    """Find out whether this role may install them; nothing stays behind."""
    try:
        with connection.transaction():
            _install(connection)
            raise _NotKept
    except _NotKept:
        return True
    except (psycopg.errors.InsufficientPrivilege, Misconfigured):
        return False


def ensure(connection: Connection) -> bool:
    """Install the event triggers where this role may; return whether they are there now.

    Idempotent; two callers at once wait for each other. Raises `Misconfigured` where this is a
    superuser, and somebody who is none made schema or functions beforehand.
    """
    if installed(connection):
        return True
    try:
        with connection.transaction():
            connection.execute(_LOCK)
            _install(connection)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


def tell(connection: Connection, tables: Sequence[str]) -> None:
    """Write a message that describes each table as it is now, changed or not.

    The first message of a table is what later ones are compared with. Does nothing where there are
    no event triggers. Those of the version before, which this role may not replace, tell on: so
    tables that join have a first message, too.
    """
    if not _telling(connection):
        return
    for table in tables:
        name = sql.Identifier(*split_table(table))
        with connection.transaction():
            # No DDL can come between the look and the message.
            connection.execute("SET LOCAL lock_timeout = '5s'")
            connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(name))
            connection.execute(
                "SELECT penstock.tell_table_v1(%s::text::regclass, 'describe', 'DESCRIBE')",
                (name.as_string(connection),),
            )


def remove(connection: Connection, *, unless_used_beside: str | None = None) -> bool:
    """Drop everything that `ensure` made; return whether it is gone.

    `unless_used_beside` names a publication: while another source of Penstock captures tables of
    this database, the triggers stay. Raises `Misconfigured` where they belong to another role.
    """
    if unless_used_beside is not None and _used_beside(connection, unless_used_beside):
        return False
    try:
        with connection.transaction():
            connection.execute(_LOCK)
            for trigger in TRIGGERS:
                name = sql.Identifier(trigger)
                connection.execute(sql.SQL("DROP EVENT TRIGGER IF EXISTS {}").format(name))
            connection.execute(
                """
                DO $$ DECLARE f regprocedure; BEGIN
                  FOR f IN SELECT p.oid FROM pg_proc p
                            WHERE p.pronamespace = to_regnamespace('penstock')
                              AND p.proname ~ '^(tell_)?(ddl|drop|rewrite|table)_v[0-9]+$'
                  LOOP EXECUTE 'DROP FUNCTION ' || f; END LOOP;
                  IF to_regnamespace('penstock') IS NOT NULL AND NOT EXISTS (
                     SELECT FROM pg_depend WHERE refclassid = 'pg_namespace'::regclass
                        AND refobjid = to_regnamespace('penstock'))
                  THEN DROP SCHEMA penstock; END IF;
                END $$
                """
            )
    except psycopg.errors.InsufficientPrivilege as error:
        drops = " ".join(f"DROP EVENT TRIGGER {trigger};" for trigger in TRIGGERS)
        raise Misconfigured(
            "the event triggers belong to another role and stay",
            remedy=f"As a superuser, in the source's database: {drops}"
            " DROP SCHEMA penstock CASCADE;",
            foreign=True,
        ) from error
    return True


def _telling(connection: Connection) -> bool:
    """Whether event triggers are there and enabled, of this version or of another one."""
    row = connection.execute(
        """
        SELECT count(*) = %s AND EXISTS (
                 SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                  WHERE n.nspname = 'penstock' AND p.proname = 'tell_table_v1'
                    AND has_schema_privilege(n.oid, 'USAGE')
                    AND has_function_privilege(p.oid, 'EXECUTE')) AS there
          FROM pg_event_trigger WHERE evtname = ANY (%s) AND evtenabled = 'A'
        """,
        (len(TRIGGERS), list(TRIGGERS)),
    ).fetchone()
    return row is not None and bool(row["there"])


def _install(connection: Connection) -> None:
    # psycopg sends a statement without parameters as it is, so that the file may hold several.
    try:
        connection.execute(INSTALL.encode())
    except psycopg.errors.RaiseException as error:
        raise Misconfigured(
            str(error.diag.message_primary), remedy=f"{error.diag.message_hint}, and repeat."
        ) from error
    for function in ("tell_ddl_v1", "tell_drop_v1", "tell_rewrite_v1"):
        connection.execute(
            sql.SQL("COMMENT ON FUNCTION penstock.{}() IS {}").format(
                sql.Identifier(function), sql.Literal(f"Tells Penstock of DDL. {_MARK}")
            )
        )


def _used_beside(connection: Connection, publication: str) -> bool:
    row = connection.execute(
        r"""
        SELECT EXISTS (SELECT FROM pg_publication WHERE pubname LIKE 'penstock\_%%'
                          AND pubname NOT LIKE '%%\_outbox' AND pubname <> %s) AS used
        """,
        (publication,),
    ).fetchone()
    return row is not None and bool(row["used"])
