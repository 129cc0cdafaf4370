"""Columns that a flow's tables have beside the source's."""

from __future__ import annotations

SEQUENCE = "__sequence"
DELETED = "__deleted"
TRUNCATE = "__truncate"
CONTENT = "__content"
ID = "__id"
TAKEN_US = "__taken_us"
EPOCH = "__epoch"
START_AT, END_AT = "__START_AT", "__END_AT"

FACT = (SEQUENCE, DELETED, TRUNCATE, CONTENT, ID, TAKEN_US, EPOCH)
_PASSING = (
    *("refused", "loser", "partial", "known", "r", "last", "best"),
    *("newest", "since", "before", "life", "bound", "there"),
)
"""Columns that only pass through our queries, behind two underscores."""
_OWN = frozenset((*FACT, START_AT.lower(), END_AT.lower(), "__op", *(f"__{n}" for n in _PASSING)))


def is_own(name: str) -> bool:
    """Return whether a column of that name would meet one of ours; Spark sees no letter case."""
    return name.lower() in _OWN or name.lower().startswith("__said")


FACTS, QUARANTINE, CHECKPOINTS = "_facts", "_quarantine", "_checkpoints"
"""Beneath a target's root: what is remembered, what was refused, how far streams have read."""
