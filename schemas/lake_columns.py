"""What the fields of an event are called in its typed table, and back.

A field keeps its name unless the table cannot have it twice:

- one that is called like a column of ours has one underscore behind its name: `version` is
  `version_`, and `version_` is `version__`. Letter case does not matter, as engines read names
  without it;
- of fields whose names differ in letter case only, the first keeps its name, and each further one
  has its number among them behind two underscores: `Name` and `name` are `Name` and `name__2`.

No field can therefore meet a column of ours, and `field_names` reverses the rule.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def event_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return what the fields of an event are called in its typed table, in order."""
    return lake_columns(names, OF_EVENTS)


def field_names(names: Sequence[str]) -> dict[str, str]:
    """Return, by the columns of a typed table, what the fields of its events are called."""
    return dict(zip(event_columns(names), names, strict=True))


def _beside(name: str, ours: Collection[str]) -> str:
    bare = name.lower()
    while bare not in ours and bare.endswith("_"):
        bare = bare[:-1]
    return f"{name}_" if bare in ours else name
