"""Columns that a flow's tables have beside the source's."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SEQUENCE = "__sequence"
DELETED = "__deleted"
TRUNCATE = "__truncate"
CONTENT = "__content"
ID = "__id"
TAKEN_US = "__taken_us"
EPOCH = "__epoch"
START_AT, END_AT = "__START_AT", "__END_AT"

FACT = (SEQUENCE, DELETED, TRUNCATE, CONTENT, ID, TAKEN_US, EPOCH)
OWN = frozenset((*FACT, START_AT, END_AT, "__op"))


def micros(moment: datetime) -> int:
    """Microseconds since 1970: tombstones are dated by a number that every engine compares."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


FACTS, QUARANTINE, CHECKPOINTS = "_facts", "_quarantine", "_checkpoints"
"""Beneath a target's root: what is remembered, what was refused, how far streams have read."""
