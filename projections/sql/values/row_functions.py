"""Functions over rows of the plan tree: aggregates of groups, and what is computed around a row."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlglot import exp

from projections.sql.words.catalog import Column

PARTS_TYPE = "array<double>"
"""The type of the parts of an exact total: see `projections.run.exact_totals`."""


class Function(StrEnum):
    """What is computed from the rows of a group, or from the rows around one."""

    COUNT = "count"
    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    ALL = "bool_and"
    ANY = "bool_or"
    NEWEST = "newest"
    ROW_NUMBER = "row_number"
    RANK = "rank"
    DENSE_RANK = "dense_rank"
    LAG = "lag"
    LEAD = "lead"
    FIRST_VALUE = "first_value"
    LAST_VALUE = "last_value"
    FIRST_KNOWN = "first_known"
    LAST_KNOWN = "last_known"
    LIST = "list"
    VALUES = "values"
    PERCENTILE = "percentile"
    VARIANCE = "variance"
    ELEMENT = "element"
    MODE = "mode"
    MAX_BY = "max_by"
    MIN_BY = "min_by"
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    NTILE = "ntile"
    PERCENT_RANK = "percent_rank"
    CUME_DIST = "cume_dist"
    NTH_VALUE = "nth_value"
    LAG_KNOWN = "lag_known"
    LEAD_KNOWN = "lead_known"
    NTH_KNOWN = "nth_known"
    TRY_SUM = "try_sum"
    PARTS = "parts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ordering:
    """One column of an ORDER BY."""

    column: str
    descending: bool
    nulls_first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One function over rows. `argument` is a column; None counts rows.

    `kind` is the argument's type and `type` the result's, both empty where they are not certain.
    `default` is what LAG and LEAD give where there is no neighbour, of the argument's type, what a
    LIST has between values, and the part below a PERCENTILE or an ELEMENT. `by` is the column by
    which MAX_BY and MIN_BY choose a row. `offset` is also the number of an NTILE's parts, and the
    place of an NTH_VALUE. `order` is that of a LIST or of VALUES; without one they stand in their
    own. PARTS are those of the exact total of doubles; of `PARTS_TYPE` the argument has such.
    """

    name: str
    function: Function
    argument: str | None
    kind: str
    type: str
    distinct: bool = False
    offset: int = 1
    default: exp.Expr | None = None
    by: Column | None = None
    order: tuple[Ordering, ...] = ()

    @property
    def reads(self) -> set[str]:
        """Return the columns of the input that it is computed from."""
        by = None if self.by is None else self.by.name
        order = (each.column for each in self.order)
        return {name for name in (self.argument, by, *order) if name is not None}

    @property
    def column(self) -> Column:
        """Return the result as a column."""
        return Column(name=self.name, type=self.type)
