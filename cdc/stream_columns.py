"""Generated columns, which no publication of ours carries: what of a table may not rest on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cdc.admission import Check, quoted
from cdc.database import Connection, Row, split_table
from cdc.options import TableOptions
from schemas.pg_types import SourceColumn

KEY_IS_SENT = "a key without generated columns"
PLAIN_IDENTITY = "REPLICA IDENTITY DEFAULT beside generated columns"
_REFUSES_UPDATES = 180000
"""From this version on a table that is published under FULL, with a generated column that is not,
takes no UPDATE and no DELETE any more, whoever sends it."""


def bars_full(connection: Connection, found: Row) -> bool:
    """Say whether a published table would refuse changes under REPLICA IDENTITY FULL.

    `found` says of it whether it has generated columns.
    """
    return connection.info.server_version >= _REFUSES_UPDATES and bool(found["generated"])


def generated_checks(
    subject: str,
    table: str,
    keys: Sequence[str],
    columns: Mapping[str, SourceColumn],
    options: TableOptions,
    *,
    mirrored: bool,
    repairable: bool,
) -> Iterator[Check]:
    """Check a table for its generated columns.

    `mirrored`: PostgreSQL would refuse its changes, see `bars_full`. `repairable`: nothing else
    asks for REPLICA IDENTITY FULL.
    """
    generated = [name for name, column in columns.items() if column.generated]
    lost = [name for name in keys if name in generated]
    if lost:
        yield Check(
            subject=subject,
            required=KEY_IS_SENT,
            found=f"{', '.join(lost)}: not in the stream of changes",
            ok=False,
            fix=f"Make the primary key of {table} anew, of ordinary columns",
        )
    if mirrored:
        plain = f"ALTER TABLE {quoted(*split_table(table))} REPLICA IDENTITY DEFAULT"
        yield Check(
            subject=subject,
            required=PLAIN_IDENTITY,
            found=f"full, and {', '.join(generated)}: PostgreSQL would refuse each UPDATE and"
            " DELETE of the application",
            ok=False,
            fix=f"{plain}, of each partition that is FULL; or drop the column",
            repair=plain if repairable else None,
        )
    noted = [name for name in generated if name not in options.exclude]
    if noted:
        yield Check(
            subject=subject,
            required="no generated columns",
            found=f"{', '.join(noted)}: not in the stream of changes",
            ok=False,
            advice=True,
            fix="Compute them in a projection",
        )
