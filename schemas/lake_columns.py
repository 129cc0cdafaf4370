"""What the columns of a source are called in the lake, and back.

A column keeps its name unless the lake cannot have it twice:

- one that is called like a column of ours has one underscore behind its name: `_lsn` is `_lsn_`,
  and `_lsn_` is `_lsn__`. Letter case does not matter, as engines read names without it;
- of columns whose names differ in letter case only, the first keeps its name, and each further one
  has its number among them behind two underscores: `Name` and `name` are `Name` and `name__2`.

No column of a source can therefore meet one of ours, and `source_columns` reverses the rule.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

OF_CHANGES = frozenset(
    (
        "committed_at",
        "_epoch",
        "_late",
        "_time",
        "_seq_hi",
        "_seq_lo",
        "_ingested_at",
        "_operation",
        "_transaction",
        "_lsn",
        "_exact",
        "_deleted",
        "_previous_key",
        "_next_key",
        "__op",
        "__hi",
        "__lo",
        "__event_time",
        "__committed_at",
        "__deleted",
        "__present",
        "__unchanged",
        "__epoch",
        "__keys",
        "__row",
        "__hit",
    )
)
"""Columns of ours in tables that are made from captured rows, hidden and passing ones included."""

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
        "_epoch",
        "_late",
        "_time",
        "_seq_hi",
        "_seq_lo",
        "_ingested_at",
        "__op",
        "__present",
    )
)
"""Columns of ours in the typed tables of events."""


def lake_columns(names: Sequence[str], ours: Collection[str] = ()) -> tuple[str, ...]:
    """Return what the columns `names` of one table or object are called in the lake, in order."""
    found: list[str] = []
    taken: set[str] = set()
    for name in names:
        column = free = _beside(name, ours)
        number = 1
        while free.lower() in taken or (number > 1 and free in names):
            number += 1
            free = f"{column}__{number}"
        taken.add(free.lower())
        found.append(free)
    return tuple(found)


def source_columns(names: Sequence[str], ours: Collection[str] = ()) -> dict[str, str]:
    """Return, by their names in the lake, what columns are called where they come from."""
    return dict(zip(lake_columns(names, ours), names, strict=True))


def _beside(name: str, ours: Collection[str]) -> str:
    bare = name.lower()
    while bare not in ours and bare.endswith("_"):
        bare = bare[:-1]
    return f"{name}_" if bare in ours else name
