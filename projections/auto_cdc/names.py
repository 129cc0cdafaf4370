"""Columns that a flow's tables have beside the source's."""

from __future__ import annotations

SEQUENCE = "__sequence"
DELETED = "__deleted"
TRUNCATE = "__truncate"
CONTENT = "__content"
ID = "__id"
TAKEN_AT = "__taken_at"
EPOCH = "__epoch"
START_AT, END_AT = "__START_AT", "__END_AT"

FACT = (SEQUENCE, DELETED, TRUNCATE, CONTENT, ID, TAKEN_AT, EPOCH)
OWN = frozenset((*FACT, START_AT, END_AT, "__op"))

FACTS, QUARANTINE, CHECKPOINTS = "_facts", "_quarantine", "_checkpoints"
"""Beneath a target's root: what is remembered, what was refused, how far streams have read."""
