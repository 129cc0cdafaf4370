"""Marks in a source's stream: a message whose place is known, and after which a cut can stand."""

from __future__ import annotations

from cdc.database import Connection
from kernel.positions import Lsn, lsn_from_text

PREFIX = "penstock.verify"


def emit(connection: Connection) -> Lsn:
    """Write a logical message in a transaction of its own and return its LSN.

    Its END comes after that LSN, so that the cut of an idle source passes it. Everything that a
    statement before this call has seen is at or below it. The reverse does not hold: a transaction
    whose commit is in the WAL may not be visible yet.
    """
    row = connection.execute(
        "SELECT pg_logical_emit_message(true, %s, '')::text AS lsn", (PREFIX,)
    ).fetchone()
    assert row is not None, "a function call has one row"
    return lsn_from_text(str(row["lsn"]))
