"""What a plan is made of: the contract between the planner and the runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from projections.sql.words.catalog import Column

if TYPE_CHECKING:
    from projections.sql.operators.tree import Newest
    from projections.sql.plans.adding import Adding

HIDDEN_STREAM = ("_epoch", "_time", "_seq_hi", "_seq_lo")
INGESTED_AT = "_ingested_at"
"""When a row of a stream was read, which queries call `ingested_at`: their processing time."""
HIDDEN_TABLE = (*HIDDEN_STREAM, "_deleted")
ORDER = ("_time", "_seq_hi", "_seq_lo")
"""Order of the rows of one stream: event time, then the source's own sequence."""
END = "_end"
"""The column with the end of a final row, in microseconds since 1970: hidden, as `_epoch` is."""
PARTIAL = "_partial_"
"""Begins the names of hidden columns that new facts are added to; see `plans.adding`."""
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

    NEWEST: the newest row of each key among new facts, and facts whose version changed, with its
    order columns; it is merged where it is not older than the target's row.
    KEYS: the rows of the keys that new facts and changed versions touch, from the facts of these,
    or where the plan says how (`adding`) from the new facts and the rows that the target has.
    REGIONS: the operators of `tree` compute the regions that changes touch, in this process.
    WHOLE: as REGIONS, but an expression is Spark's alone: every run computes everything.
    """

    NEWEST = "newest"
    KEYS = "keys"
    REGIONS = "regions"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One input: queries read it as `view`."""

    kind: InputKind
    name: str
    view: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to compute a projection.

    `tree` are the operators, and `columns` is the target's shape in order, without the columns that
    are hidden: those of `ORDER` where the plan is `ordered`, and those of `PARTIAL`.
    `rows_sql` computes all rows from the whole inputs, as Spark SQL text over their views: the
    rebuild, and the oracle of P6.
    `small`: the process of the pipeline computes it with the same bits as Spark.
    `stateful`: a row depends on several facts, so rows closed as late must be left out.
    `final`: rows are given out when the watermark has passed their end; see `rows_at`.
    """

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    inputs: tuple[Input, ...]
    stateful: bool
    strategy: Strategy
    small: bool
    rows_sql: str
    freshness: timedelta
    fingerprint: str
    cost: str
    notes: tuple[str, ...]
    tree: Newest = field(repr=False, compare=False)
    final: bool = False
    adding: Adding | None = field(default=None, repr=False, compare=False)

    @property
    def ordered(self) -> bool:
        """Say whether the target has the columns of `ORDER`."""
        adds = self.adding is not None and self.adding.ordered
        return adds or self.strategy is Strategy.NEWEST

    def rows_at(self, watermark_us: int | None) -> str:
        """Return `rows_sql` as it is at a watermark, which final rows alone depend on."""
        return self.at(self.rows_sql, watermark_us)

    def at(self, text: str, watermark_us: int | None) -> str:
        """Return a text of the plan's query as it is at a watermark."""
        us = NOTHING_ENDED if watermark_us is None else watermark_us
        return text.replace(WATERMARK, str(us)) if self.final else text
