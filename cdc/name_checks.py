"""Which names of tables and columns cannot be captured, whatever the settings.

All others arrive as they are (`ColumnNames` of the connector, `schemas.field_names`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from cdc.admission import Check, quoted
from cdc.database import split_table
from cdc.options import TableOptions

TOLD_APART = "column names that differ by more than upper and lower case"
_SEPARATORS = ",;:"
"""Characters at which the connector parts its lists of tables, keys and columns.

It takes blanks off both ends of what is between them."""


def name_checks(
    subject: str, table: str, columns: Sequence[str], key: Sequence[str], options: TableOptions
) -> Iterator[Check]:
    """Check the names of a table, of its columns, and of those that the declaration lists."""
    listed = [
        name
        for name in (table, *key, *options.exclude, *options.veiled)
        if name != name.strip() or any(character in name for character in _SEPARATORS)
    ]
    if listed:
        yield Check(
            subject=subject,
            required=f"no {' '.join(_SEPARATORS)} and no blank at an end in names that the"
            " connector lists",
            found=", ".join(map(repr, listed)),
            ok=False,
            fix="Rename it: tables, declared keys, excluded and veiled columns stand in lists",
        )
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for column in columns:
        alike[column.lower()].append(column)
    twins = [names for names in alike.values() if len(names) > 1]
    if twins:
        name = quoted(*split_table(table))
        yield Check(
            subject=subject,
            required=TOLD_APART,
            found="; ".join(" and ".join(names) for names in twins),
            ok=False,
            fix=f"ALTER TABLE {name} RENAME COLUMN {quoted(twins[0][-1])} TO …",
        )
