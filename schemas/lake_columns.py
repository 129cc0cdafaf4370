"""What fields of events and columns of captured tables are called in the lake, and back.

A name stays what it is unless the table cannot have it twice:

- one that is called like a column of ours has one underscore behind its name: `version` is
  `version_`, and `version_` is `version__`. Letter case does not matter, as engines read names
  without it;
- one that begins with two underscores has one behind it, too: `__op` is `__op_`. Columns that only
  pass through our queries begin so and never end with an underscore;
- of fields whose names differ in letter case only, the first keeps its name, and each further one
  has its number among them behind two underscores: `Name` and `name` are `Name` and `name__2`.

No field can therefore meet a column of ours, and `field_names` reverses the rule.

A captured table's column is renamed by itself, wherever its name comes from: where it differs from
an earlier column of its table in letter case only, its number among them is part of its name here
(`numbered`). The connector numbers them by the same rule (`stack/connect/TwinColumns.java`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

STAMPS = ("_epoch", "_late", "_time", "_seq_hi", "_seq_lo", "_ingested_at")
"""What every row of a typed table has: when it came, whether too late, and its place in order."""

OF_EVENTS = frozenset(
    (
        "event_id",
        "stream",
        "entity_id",
        "type",
        "version",
        "position",
        "occurred_at",
        "recorded_at",
        *STAMPS,
    )
)
"""Columns of ours in the typed tables of events."""

OF_CHANGES = frozenset(
    (
        "committed_at",
        *STAMPS,
        "_operation",
        "_transaction",
        "_lsn",
        "_deleted",
        "_exact",
        "_previous_key",
        "_next_key",
        "_install",
        "_chunk",
    )
)
"""Columns of ours in the tables of captured tables: current, typed, history and log of copies.

The two of a history that begin without an underscore are freed there (`pipeline.history.tables`).
"""


OF_TOPICS = (
    OF_EVENTS
    | OF_CHANGES
    | {
        "kafka_partition",
        "kafka_offset",
        "kafka_timestamp",
        "kafka_key",
        "event_time_given",
        "ends_key",
    }
)
"""Columns of ours in the typed tables of external topics, and in their histories."""


TWIN = "\uf8ff"
"""Stands between a column's name and its number where another one differs in letter case only."""


def folded(name: str) -> str:
    """Return what names have in common that are one to those who read them without letter case.

    As Java compares them, and with it the connector and Spark: by the capital of each letter, and
    then by its small one. So `\u03bc` is the micro sign, too, and the dotless `\u0131` is an `i`.
    """
    return name.lower() if name.isascii() else "".join(map(_folded, name))


def _folded(letter: str) -> str:
    capital = letter.upper()
    # A letter whose other case is several has none to Java, but for the dotted capital I.
    return (capital if len(capital) == 1 else letter).lower()[0]


def lake_columns(names: Sequence[str], ours: Collection[str] = ()) -> tuple[str, ...]:
    """Return what the columns `names` of one table or object are called in the lake, in order."""
    found: list[str] = []
    taken: set[str] = set()
    for name in names:
        column = free = _beside(name, ours)
        number = 1
        while folded(free) in taken or (number > 1 and free in names):
            number += 1
            free = f"{column}__{number}"
        taken.add(folded(free))
        found.append(free)
    return tuple(found)


def event_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return what the fields of an event are called in its typed table, in order."""
    return lake_columns(names, OF_EVENTS)


def numbers(names: Sequence[str]) -> tuple[int, ...]:
    """Number the columns of one table, in its order, among those that differ in letter case only.

    A number is passed over where the name that it would give in the lake is another column's.
    """
    every = {folded(name) for name in names}
    last: dict[str, int] = {}
    found: list[int] = []
    for one in map(folded, names):
        number = last.get(one, 0) + 1
        # `_beside` may put an underscore more between name and number.
        while number > 1 and not every.isdisjoint((f"{one}__{number}", f"{one}___{number}")):
            number += 1
        last[one] = number
        found.append(number)
    return tuple(found)


def numbered(name: str, number: int) -> str:
    """Return a column's name as it travels: with its number (`numbers`), where that is not 1."""
    return name if number == 1 else f"{name}{TWIN}{number}"


def captured_column(name: str) -> str:
    """Return what a column of a captured table is called in the lake; see `numbered`."""
    real, mark, number = name.rpartition(TWIN)
    if mark and number.isascii() and number.isdecimal():
        found = f"{_beside(real, OF_CHANGES)}__{number}"
        return f"{found}_" if found.startswith("__") else found
    return _beside(name, OF_CHANGES)


def captured_name(column: str) -> str:
    """Return what the source calls a column of the lake, which has no number: `captured_column`'s
    inverse.
    """
    bare = column.removesuffix("_")
    return bare if bare != column and captured_column(bare) == column else column


def captured_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return what columns of a captured table are called in the lake, in order."""
    return tuple(map(captured_column, names))


def field_names(names: Sequence[str]) -> dict[str, str]:
    """Return, by the columns of a typed table, what the fields of its events are called."""
    return dict(zip(event_columns(names), names, strict=True))


def _beside(name: str, ours: Collection[str]) -> str:
    if ours and name.startswith("__"):
        return f"{name}_"
    bare = folded(name)
    while bare not in ours and bare.endswith("_"):
        bare = bare[:-1]
    return f"{name}_" if bare in ours else name
