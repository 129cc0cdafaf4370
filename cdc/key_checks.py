"""Which keys tell rows apart: those that are declared, and those that tables have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cdc.admission import Check, quoted
from cdc.database import split_table
from schemas.pg_types import SourceColumn

NO_ARRAYS = "a key without arrays"
NO_NULLS = "NOT NULL for the columns of its declared key"
TOLD_WHOLE = "REPLICA IDENTITY FULL, for a declared key that is not the primary key"


def key_checks(
    subject: str,
    table: str,
    key: Sequence[str],
    primary: Sequence[str],
    columns: Mapping[str, SourceColumn],
    *,
    full: bool,
) -> Iterator[Check]:
    """Check the declared key of a table, empty where its `primary` one counts.

    `full`: its replica identity is FULL.
    """
    name = quoted(*split_table(table))
    whole = f"ALTER TABLE {name} REPLICA IDENTITY FULL"
    missing = [each for each in key if each not in columns]
    if missing:
        yield Check(
            subject=subject,
            required="the columns of its declared key",
            found=f"no column {', '.join(missing)}",
            ok=False,
            fix="Correct --key",
        )
    empty = [each for each in key if each in columns and not columns[each].not_null]
    if empty:
        yield Check(
            subject=subject,
            required=NO_NULLS,
            found=f"{', '.join(empty)} may be null: rows without a key cannot be told apart",
            ok=False,
            fix=f"ALTER TABLE {name} ALTER COLUMN {quoted(empty[0])} SET NOT NULL,"
            " or declare others",
        )
    if key and primary and set(key) != set(primary) and not full:
        yield Check(
            subject=subject,
            required=TOLD_WHOLE,
            found=f"declared {', '.join(key)}: a DELETE tells {', '.join(primary)} alone",
            ok=False,
            fix=f"Leave the declared key out, or {whole}",
        )
    lists = [each for each in key or primary if each in columns and columns[each].is_array]
    if lists:
        yield Check(
            subject=subject,
            required=NO_ARRAYS,
            found=f"{', '.join(lists)}: rows cannot be told apart by arrays",
            ok=False,
            fix=f"{whole}, and declare another unique key: --key {table}:COLUMN",
        )
