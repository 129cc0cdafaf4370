"""`lake/verifications`: what was compared with its source, what differed, what healed it.

Append only, one row per table and comparison: a `command`'s, a full `round` of the continuous
verifier, a `difference` that it found on its way, a `heal`: the range that was replaced and how
the comparison went after. Numbers are of rows; `keys` holds at most 100 of the differing ones.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lake.layout import Lake
from lake.ledger import Ledger
from lake.table_columns import UTC_MICROS
from lake.tables import Tables

NAME = "verifications"
MOST_KEYS = 100

SCHEMA = pa.schema(
    [
        ("entry", pa.int64()),
        ("at", UTC_MICROS),
        ("source", pa.string()),
        ("table", pa.string()),
        ("kind", pa.string()),
        ("lsn", pa.int64()),
        ("epoch", pa.int64()),
        ("ranges", pa.int64()),
        ("rows", pa.int64()),
        ("missing", pa.int64()),
        ("extra", pa.int64()),
        ("differing", pa.int64()),
        ("keys", pa.string()),
        ("cause", pa.string()),
        ("install", pa.string()),
        ("after", pa.string()),
        ("since", UTC_MICROS),
    ]
)
_APP_ID = NAME


class Kind(StrEnum):
    """What made a fact."""

    COMMAND = "command"
    ROUND = "round"
    DIFFERENCE = "difference"
    HEAL = "heal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One comparison of one table. `rows` were compared at the source, in `ranges` ranges.

    `missing` keys are not in the lake, `extra` only there, `differing` have other values.
    `install` names what healed them, `after` how the check after it went: `equal` or `differs`.
    `since` is when the comparison, or the round, began.
    """

    source: str
    table: str
    kind: Kind
    lsn: int
    epoch: int
    ranges: int
    rows: int
    missing: int = 0
    extra: int = 0
    differing: int = 0
    keys: tuple[dict[str, object], ...] = ()
    cause: str | None = None
    install: str | None = None
    after: str | None = None
    since: datetime | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def equal(self) -> bool:
        """Whether nothing differed."""
        return not (self.missing or self.extra or self.differing)


class Verifications:
    """Reads and appends the facts of one lake; several processes may append."""

    def __init__(self, lake: Lake, tables: Tables) -> None:
        self._path = lake.path(NAME)
        self._tables = tables
        self._ledger = Ledger(self._path, tables, SCHEMA, _APP_ID)

    def add(self, facts: Sequence[Fact]) -> None:
        """Append facts in one commit. Raises `LeaseLost` when others were faster every time."""
        if facts:
            self._ledger.put(
                lambda number: [_row(fact, number * 1000 + i) for i, fact in enumerate(facts)]
            )

    def of(self, source: str, *, table: str | None = None) -> list[Fact]:
        """Return the facts of a source, oldest first."""
        where = pc.field("source") == source
        if table is not None:
            where = where & (pc.field("table") == table)
        rows = self._tables.read(self._path, where=where)
        found = [] if rows is None else rows.sort_by([("entry", "ascending")]).to_pylist()
        return [_fact(row) for row in found]


def _row(fact: Fact, entry: int) -> dict[str, object]:
    found = {name: getattr(fact, name) for name in SCHEMA.names if name not in ("entry", "keys")}
    keys = json.dumps(list(fact.keys[:MOST_KEYS]), ensure_ascii=False, default=str)
    return {**found, "kind": fact.kind.value, "entry": entry, "keys": keys}


def _fact(row: dict[str, Any]) -> Fact:
    known = {name: value for name, value in row.items() if name not in ("entry", "keys", "kind")}
    keys = tuple(json.loads(str(row["keys"] or "[]")))
    return Fact(**known, kind=Kind(str(row["kind"])), keys=keys)
