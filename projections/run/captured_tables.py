"""What the catalog says about the tables of a captured source.

It is written by `source …` and by the pipeline's keeper of connectors, and read by the fold.
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
