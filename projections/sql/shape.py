"""What a plan is made of: the contract between the planner and the runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from projections.sql.catalog import Column

if TYPE_CHECKING:
    from projections.sql.tree import Newest

HIDDEN_STREAM = ("_epoch", "_time", "_seq_hi", "_seq_lo")
INGESTED_AT = "_ingested_at"
"""When a row of a stream was read, which queries call `ingested_at`: their processing time."""
HIDDEN_TABLE = (*HIDDEN_STREAM, "_deleted")
ORDER = ("_time", "_seq_hi", "_seq_lo")
"""Order of the rows of one stream: event time, then the source's own sequence."""
END = "_end"
"""The column with the end of a final row, in microseconds since 1970: hidden, as `_epoch` is."""
WATERMARK = "{watermark}"
"""Stands in a query of final rows for the watermark, in microseconds since 1970."""
NOTHING_ENDED = -(2**62)
"""The watermark before there is one."""


class InputKind(StrEnum):
    """How a plan reads an input.

    STREAM: immutable facts, with `HIDDEN_STREAM` beside the relation's columns.
    HISTORY: versions, with `valid_from`, `valid_to` (exclusive, NULL while valid) and `_deleted`.
    LATEST: of those the ones that are valid still, one for each key.
    PROJECTION: the rows of another projection as they are, one for each key.
    """

    STREAM = "stream"
    LATEST = "latest"
    HISTORY = "history"
    PROJECTION = "projection"


class Strategy(StrEnum):
    """How a plan is kept up to date.

    NEWEST: `changed_sql` reads `in_0_new` and gives one candidate for each key with its order
    columns; the runner merges it where it is newer than the target's row.
    RECOMPUTE: `affected_sql` gives the keys that may have changed, `changed_sql` their new rows.
    REGIONS: the operators of `tree` compute the regions that changes touch, in this process.
    WHOLE: as REGIONS, but an expression is Spark's alone: every run computes everything.
    """

    NEWEST = "newest"
    RECOMPUTE = "recompute"
    REGIONS = "regions"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBounds:
    """Which rows of an input the affected keys can depend on: lower <= column < upper.

    `lower_sql` and `upper_sql` are aggregates over the view `affected`; NULL when it is empty.
    """

    column: str
    lower_sql: str
    upper_sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input: the runner registers it as `view`, and its new rows as `<view>_new`."""

    kind: InputKind
    name: str
    view: str
    time_bounds: TimeBounds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to compute a projection, as Spark SQL text over the views of its inputs.

    `columns` is the target's shape in order, without the order columns that NEWEST adds.
    `rows_sql` computes all rows from the whole inputs: the rebuild, and the oracle of P6.
    `tree` is the plan of a query of several steps, None for one that its SQL says all about.
    `stateful`: a row depends on several facts, so rows closed as late must be left out.
    `final`: rows are given out when the watermark has passed their end; see `rows_at`.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    inputs: tuple[Input, ...]
    stateful: bool
    strategy: Strategy
    rows_sql: str
    affected_sql: str | None
    changed_sql: str | None
    freshness: timedelta
    fingerprint: str
    cost: str
    notes: tuple[str, ...]
    tree: Newest | None = field(default=None, repr=False, compare=False)
    final: bool = False

    def rows_at(self, watermark_us: int | None) -> str:
        """Return `rows_sql` as it is at a watermark, which final rows alone depend on."""
        us = NOTHING_ENDED if watermark_us is None else watermark_us
        return self.rows_sql.replace(WATERMARK, str(us)) if self.final else self.rows_sql
