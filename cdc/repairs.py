"""`--fix`: mend what SQL can mend, and say what was done and what remains.

Each repair is a statement of its own: one that the role may not run leaves the others standing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc.admission import Check
from cdc.database import Connection
from cdc.replication import ensure_publication
from kernel.errors import PenstockError, first_line

_LOCK_TIMEOUT = "5s"
_NOT_GRANTED = "01007"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """One statement that was tried. `remains`: what a person still has to do, None when nothing."""

    subject: str
    statement: str
    done: bool
    remains: str | None


def repair(connection: Connection, checks: Iterable[Check]) -> tuple[Repair, ...]:
    """Run the repair of every check that failed; nothing else is changed. Never raises for one."""
    found: dict[str, Repair] = {}
    for check in checks:
        if check.ok or check.repair is None or check.repair in found:
            continue
        found[check.repair] = _tried(connection, check, check.repair)
    return tuple(found.values())


def publish(
    connection: Connection,
    name: str,
    columns: Mapping[str, tuple[str, ...] | None],
    *,
    reader: str,
    owner: str,
) -> Repair:
    """Make a source's publication as the role of `connection`, for tables that `reader` reads.

    `owner` is the connector that it is for. No right of the tables' owners goes to `reader`: it
    only gets the publication itself, where this role may give it away, so that it can drop it.
    `columns` maps tables to their listed columns.
    """
    subject, statement = f"publication {name}", f"publication {name} of {', '.join(columns)}"
    lists = {table: listed for table, listed in columns.items() if listed is not None}
    try:
        ensure_publication(connection, name, tuple(columns), columns=lists, owner=owner)
    except (psycopg.Error, PenstockError) as error:
        return Repair(
            subject=subject,
            statement=statement,
            done=False,
            remains=f"{first_line(error)}. As a superuser: --fix-as DSN",
        )
    give = sql.SQL("ALTER PUBLICATION {} OWNER TO {}").format(*map(sql.Identifier, (name, reader)))
    try:
        connection.execute(give)
        remains = None
    except psycopg.Error:
        remains = f"it is this role's: {reader} reads it, and cannot drop it at the end"
    return Repair(subject=subject, statement=statement, done=True, remains=remains)


def _tried(connection: Connection, check: Check, statement: str) -> Repair:
    refused: list[str] = []

    def listen(notice: psycopg.errors.Diagnostic) -> None:
        # A GRANT by a role that may not give the right succeeds, with a warning.
        if notice.sqlstate == _NOT_GRANTED:
            refused.append(notice.message_primary or "")

    connection.add_notice_handler(listen)
    try:
        connection.execute(f"SET lock_timeout = '{_LOCK_TIMEOUT}'".encode())
        connection.execute(statement.encode())
        if refused:
            raise psycopg.errors.InsufficientPrivilege(refused[0])
    except psycopg.Error as error:
        reason = first_line(error) or type(error).__name__
        return Repair(
            subject=check.subject,
            statement=statement,
            done=False,
            remains=f"{reason}. As a role that may: {statement}",
        )
    finally:
        connection.remove_notice_handler(listen)
        if not connection.broken:
            connection.execute("RESET lock_timeout")
    return Repair(
        subject=check.subject,
        statement=statement,
        done=True,
        remains="restart the server: it counts only then" if check.restart else None,
    )
