"""Which savepoints there are, and how far each has come. It loads no pyarrow.

What a savepoint keeps of its tables is in Arrow's own form: `lake.savepoints` reads that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from kernel.errors import InvalidRequest, NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.rows import SmallTables

NAME = "savepoints"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_STATES = """
SELECT * EXCEPT ("columns", "files") FROM rows WHERE "table" IS NULL ORDER BY entry
"""
"""Not by their names: tables of earlier versions lack some columns."""


class SavepointState(StrEnum):
    """How far a savepoint has come."""

    TAKING = "taking"
    KEPT = "kept"
    DROPPED = "dropped"
    GONE = "gone"


HOLDING = (SavepointState.TAKING, SavepointState.KEPT)
"""The files of a savepoint in one of these are not removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Savepoint:
    """A savepoint's newest row. `expires_at` None: it is kept until it is dropped.

    `heads`: store -> its last position as of the epoch, which the manifest forgets; None where an
    earlier version took the savepoint.
    """

    id: str
    name: str
    state: SavepointState
    epoch: Epoch
    expires_at: datetime | None
    at: datetime
    heads: Mapping[str, int] | None = None


def refuse_name(name: str) -> None:
    """Raise `InvalidRequest` for a name that no savepoint can have."""
    if _NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"'{name}' is no name of a savepoint",
            remedy="It begins with a letter and has small letters, digits, - and _, at most 63.",
        )


def savepoints_of(lake: Lake) -> list[Savepoint]:
    """Return every savepoint that is not gone, oldest first."""
    newest: dict[str, Savepoint] = {}
    for row in SmallTables().select(lake.path(NAME), _STATES):
        found = _savepoint(row, newest.get(str(row["id"])))
        newest[found.id] = found
    return [each for each in newest.values() if each.state is not SavepointState.GONE]


def kept_as(lake: Lake, name: str) -> Savepoint:
    """Return the savepoint that is kept under a name. Raises `NotFound`."""
    kept = {each.name: each for each in savepoints_of(lake) if each.state is SavepointState.KEPT}
    if name not in kept:
        there = f"; there are {', '.join(sorted(kept))}" if kept else ""
        raise NotFound(f"no savepoint {name} is kept{there}", remedy="penstock savepoint list")
    return kept[name]


def _savepoint(row: Mapping[str, Any], before: Savepoint | None) -> Savepoint:
    heads = row.get("heads")
    return Savepoint(
        id=row["id"],
        name=row["name"],
        state=SavepointState(row["state"]),
        epoch=Epoch(row["epoch"]),
        expires_at=row["expires_at"],
        at=row["at"] if before is None else before.at,
        heads=None if heads is None else json.loads(heads),
    )
