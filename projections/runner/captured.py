"""What the catalog says about a captured source: its tables, and the slot that it reads from.

Both are written by `source …` and by the pipeline's keeper of connectors, and read by the fold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedTable:
    """A captured table: its key columns, and what is kept of it.

    `history`: every version of a row, too. `soft_deletes`: `current` keeps a deleted row, marked.
    """

    keys: tuple[str, ...]
    history: bool = False
    soft_deletes: bool = False


def render_tables(tables: Mapping[str, CapturedTable]) -> str:
    """Return the text of a capture's entry."""
    found = {table: asdict(tables[table]) for table in sorted(tables)}
    return json.dumps({"tables": found}, sort_keys=True)


def parse_tables(text: str) -> dict[str, CapturedTable]:
    """Read a capture's entry; the first form had nothing but a list of keys per table."""
    found = json.loads(text)
    if "tables" not in found:
        return {table: CapturedTable(keys=tuple(keys)) for table, keys in found.items()}
    return {
        table: CapturedTable(
            keys=tuple(said["keys"]),
            history=bool(said.get("history", False)),
            soft_deletes=bool(said.get("soft_deletes", False)),
        )
        for table, said in found["tables"].items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Incarnation:
    """Which history of which server a source reads: a row's place means something only in one.

    `system` and `timeline` are the server's, `slots` counts the slots that we have made there,
    `since` is the LSN at which the newest of them began. `lost` says why it can give no more:
    then the source stands still until `penstock source resnapshot`.
    """

    system: str
    timeline: int
    slots: int
    since: str
    lost: str | None = None
    lost_at: str | None = None


def render_incarnation(incarnation: Incarnation) -> str:
    """Return the text of a slot's entry."""
    return json.dumps(asdict(incarnation), sort_keys=True)


def parse_incarnation(text: str) -> Incarnation:
    """Read a slot's entry."""
    return Incarnation(**json.loads(text))
