"""Which names of tables and columns cannot be captured, whatever the settings.

All others arrive as they are (`ColumnNames` of the connector, `schemas.field_names`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

from cdc.admission import Check, quoted
from cdc.database import split_table
from cdc.options import TableOptions
from schemas.identifiers import topic_part
from schemas.lake_columns import TWIN, folded, numbers

TOLD_APART = "column names that the connector can tell apart"
OWN_TOPIC = "a topic whose name Kafka can tell apart"
FOLDER_NAME = "a name whose folder in the log has at most 255 characters"
_MARKED = re.compile(f"{TWIN}[0-9]+$")
_FOLDER = "table={}"
"""What the folder of a table's changes is called in the log; other letters are `%D1%8F`."""
_FOLDER_CHARACTERS = 255
_SEPARATORS = ",;:"
"""Characters at which the connector parts its lists of tables, keys and columns.

It takes blanks off both ends of what is between them."""


def name_checks(
    subject: str, table: str, key: Sequence[str], options: TableOptions
) -> Iterator[Check]:
    """Check the name of a table, and of the columns that the declaration lists."""
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
    folder = len(_FOLDER.format(quote(table, safe="")))
    if folder > _FOLDER_CHARACTERS:
        yield Check(
            subject=subject,
            required=FOLDER_NAME,
            found=f"{folder}: schema and table together, three for each byte beyond a to z",
            ok=False,
            fix=f"ALTER TABLE {quoted(*split_table(table))} RENAME TO …",
        )


def twin_checks(
    subject: str,
    table: str,
    columns: Sequence[str],
    key: Sequence[str],
    options: TableOptions,
    *,
    copied: bool,
) -> Iterator[Check]:
    """Check columns that differ in letter case only: `schemas.lake_columns` numbers them.

    `columns` are those that are in the stream, in the table's order, `key` the columns by which
    rows are told apart, declared or not. `copied`: we read the rows that are there, and not the
    connector.
    """
    count = Counter(map(folded, columns))
    twins = {name for name in columns if count[folded(name)] > 1}
    later = {name for name, number in zip(columns, numbers(columns), strict=True) if number > 1}
    veiled = {folded(name) for name in (*options.exclude, *options.veiled)}
    reasons = (
        ({name for name in columns if _MARKED.search(name)}, "it ends as a numbered name does"),
        (set() if copied else twins, 'the connector cannot read them; or use snapshot = "copy"'),
        (later.intersection(key), "the key's column comes after one that it differs from by case"),
        (
            {name for name in twins if folded(name) in veiled},
            "the connector would leave out, mask or hash both",
        ),
    )
    for found, reason in reasons:
        for name in sorted(found)[:1]:
            yield Check(
                subject=subject,
                required=TOLD_APART,
                found=f"{', '.join(sorted(found))}: {reason}",
                ok=False,
                fix=f"ALTER TABLE {quoted(*split_table(table))} RENAME COLUMN {quoted(name)} TO …",
            )


def measured_topic(table: str) -> str:
    """Return the name under which Kafka measures a table's topic: each dot of it is a `_`.

    Kafka refuses to make a topic where another one has that name.
    """
    return topic_part(table).replace(".", "_")


def topic_checks(subject: str, table: str, other: str | None) -> Iterator[Check]:
    """Check a table's topic against that of the `other` one whose `measured_topic` is the same.

    The connector would stop for all tables. Two tables may share one topic.
    """
    if other is None or topic_part(other) == topic_part(table):
        return
    yield Check(
        subject=subject,
        required=OWN_TOPIC,
        found=f"{topic_part(table)} beside {topic_part(other)}, the topic of {other}",
        ok=False,
        fix=f"Capture it in a source of its own: penstock source add NAME --tables {table!r}",
    )


def neighbour_checks(
    source: str, tables: Iterable[str], others: Mapping[str, Iterable[str]]
) -> Iterator[Check]:
    """Check the topics of a source's tables against those of other sources, as `topic_checks` does.

    The source's name is a part of them: `shop_eu` and `shop` may meet in one.
    """
    taken = {
        measured_topic(f"{other}.{table}"): f"{other}.{topic_part(table)}"
        for other, theirs in others.items()
        for table in theirs
    }
    for table in tables:
        found = taken.get(measured_topic(f"{source}.{table}"))
        if found is not None:
            yield Check(
                subject=f"table {table}",
                required=OWN_TOPIC,
                found=f"{source}.{topic_part(table)} beside {found}, of another source",
                ok=False,
                fix="Capture it under another name: penstock source add NAME",
            )
