"""Conditions on stored columns, by which files are left unread: what a table's log says of each.

A condition is met by every row that it is about and may be met by others: whoever asks filters what
is read once more where that matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from lake.datasets import dataset_at, schema_of
from lake.file_actions import actions_of

Bound = datetime | int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Rows with lower <= column < upper; None is open. Used to skip files, and as a filter."""

    column: str
    lower: Bound
    upper: Bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Rows whose column is in one of several ranges, each [lower, upper), where None is open."""

    column: str
    spans: tuple[tuple[Bound, Bound], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Among:
    """Rows whose column has one of some values; null is a value like any other."""

    column: str
    values: pa.Array


Condition = Range | Spans | Among


def actions_within(table: DeltaTable, conditions: Sequence[Condition]) -> pa.Table:
    """Return what the log says of each file that may hold rows that meet all conditions."""
    actions = actions_of(table)
    keep = pa.array([True] * actions.num_rows, pa.bool_())
    for condition in conditions:
        low, high = f"min.{condition.column}", f"max.{condition.column}"
        spans = _spans(condition)
        if high not in actions.column_names or spans is None:
            continue
        if not _compared(condition, actions[high].type):
            continue
        met = _may_have_null(condition, actions)
        for lower, upper in spans:
            # A file without statistics may hold anything.
            within = pc.and_(
                pc.fill_null(_at_least(actions[high], lower), True),
                pc.fill_null(_below(actions[low], upper), True),
            )
            met = pc.or_(met, within)
        keep = pc.and_(keep, met)
    return actions.filter(keep)


def dataset_within(table: DeltaTable, conditions: Sequence[Condition]) -> ds.Dataset:
    """Return the files of a table without partitions that may hold rows that meet all conditions.

    The rows are not filtered; see `filter_of`.
    """
    return dataset_at(table, actions_within(table, conditions)["path"].to_pylist())


def filter_of(table: DeltaTable, conditions: Sequence[Condition]) -> pc.Expression | None:
    """Return a filter that the rows pass which meet all conditions; None where no row can.

    No row does where the table lacks a column, unless null is asked for. Values of another type
    than the column's are not compared: rows pass that do not meet such a condition.
    """
    schema = schema_of(table)
    whole = pc.scalar(True)
    for condition in conditions:
        if condition.column not in schema.names:
            if isinstance(condition, Among) and condition.values.null_count:
                continue
            return None
        column, kind = pc.field(condition.column), schema.field(condition.column).type
        if not _compared(condition, kind):
            continue
        if isinstance(condition, Among):
            whole = whole & column.isin(condition.values)
            continue
        spans = pc.scalar(False)
        for lower, upper in _spans(condition) or ():
            within = pc.scalar(True)
            if lower is not None:
                within = within & (column >= pa.scalar(lower, kind))
            if upper is not None:
                within = within & (column < pa.scalar(upper, kind))
            spans = spans | within
        whole = whole & spans
    return whole


def rows_within(rows: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    """Return the rows that pass the filter of `filter_of`; they have all columns of the conditions.

    For rows in memory: an expression is planned and run by several threads, for milliseconds.
    """
    mask = None
    for condition in conditions:
        column = rows[condition.column]
        if not _compared(condition, column.type):
            continue
        met = _met(column, condition)
        mask = met if mask is None else pc.and_kleene(mask, met)
    return rows if mask is None else rows.filter(mask)


def _met(column: pa.ChunkedArray, condition: Condition) -> pa.ChunkedArray:
    """Say which values meet a condition."""
    if isinstance(condition, Among):
        return pc.is_in(column, condition.values)
    met = _all(column, False)
    for lower, upper in _spans(condition) or ():
        within = _all(column, True)
        if lower is not None:
            within = pc.greater_equal(column, pa.scalar(lower, column.type))
        if upper is not None:
            within = pc.and_kleene(within, pc.less(column, pa.scalar(upper, column.type)))
        met = pc.or_kleene(met, within)
    return met


def _all(column: pa.ChunkedArray, value: bool) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(value, len(column))])


def _may_have_null(condition: Condition, actions: pa.Table) -> pa.Array | pa.ChunkedArray:
    """Say of each file whether it may have a null that a condition asks for."""
    if not isinstance(condition, Among) or not condition.values.null_count:
        return pa.array([False] * actions.num_rows, pa.bool_())
    count = f"null_count.{condition.column}"
    if count not in actions.column_names:
        return pa.array([True] * actions.num_rows, pa.bool_())
    return pc.fill_null(pc.greater(actions[count], 0), True)


def _compared(condition: Condition, kind: pa.DataType) -> bool:
    """Say whether a condition's values are of a column's type."""
    if isinstance(condition, Among):
        return bool(condition.values.type == kind)
    bounds = [each for span in _spans(condition) or () for each in span if each is not None]
    moments = [isinstance(each, datetime) for each in bounds]
    return all(moments) if pa.types.is_timestamp(kind) else not any(moments)


def _spans(condition: Condition) -> tuple[tuple[Bound, Bound], ...] | None:
    """Return the ranges in which a condition's values are; None where they are not compared."""
    match condition:
        case Range():
            return ((condition.lower, condition.upper),)
        case Spans():
            return condition.spans
        case Among() if pa.types.is_integer(condition.values.type) and len(condition.values):
            seen = pc.min_max(condition.values).as_py()
            if seen["max"] is None:
                return ()
            # Nothing is greater than the type's own greatest value, nor can be written in it.
            last = seen["max"] == 2 ** (condition.values.type.bit_width - 1) - 1
            return ((seen["min"], None if last else seen["max"] + 1),)
        case Among():
            return None


def _at_least(column: pa.ChunkedArray, bound: Bound) -> pa.ChunkedArray:
    if bound is None:
        return pa.chunked_array([pa.array([True] * len(column), pa.bool_())])
    if isinstance(bound, datetime):
        # Delta's statistics cut times to milliseconds: the greatest value may lie above `column`.
        bound -= timedelta(milliseconds=1)
    return pc.greater_equal(column, pa.scalar(bound, column.type))


def _below(column: pa.ChunkedArray, bound: Bound) -> pa.ChunkedArray:
    if bound is None:
        return pa.chunked_array([pa.array([True] * len(column), pa.bool_())])
    return pc.less(column, pa.scalar(bound, column.type))
