"""Aggregates in DuckDB's words that do not depend on the order in which rows are added."""

from __future__ import annotations

from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import PARTS_TYPE, Call, Function
from projections.sql.rendering.totals import (
    EXACT_PARTS,
    EXACT_TOTAL,
    element_place,
    percentile_sql,
    variance_sql,
    with_one_zero,
)
from projections.sql.values.scalar import quoted
from projections.sql.words.decimals import FLOATING, digits_of
from schemas.identifiers import duckdb_name


def total(call: Call, value: str, over: str) -> str:
    """Write SUM, AVG, PARTS or COUNT of a value, the same in whatever order rows are added."""
    word = "DISTINCT " if call.distinct else ""
    if call.function is Function.COUNT:
        return f"count({word}{value}){over}"
    count = f"nullif(count({word}{value}){over}, 0)"
    averaged = call.function is Function.AVG
    if call.function is Function.PARTS:
        of_parts = call.kind == PARTS_TYPE
        one = value if of_parts else f"CAST({value} AS DOUBLE)"
        values = f"list({one}) FILTER (WHERE {value} IS NOT NULL)"
        return f"{EXACT_PARTS}({f'flatten({values})' if of_parts else values})"
    if call.kind in FLOATING:
        known = f"FILTER (WHERE {value} IS NOT NULL)"
        added = f"{EXACT_TOTAL}(list({word}CAST({value} AS DOUBLE)) {known}{over})"
        return f"({added} / {count})" if averaged else added
    whole = f"sum({word}{value}){over}"
    if averaged:
        return average(call, whole, count)
    return f"{'TRY_' if call.function is Function.TRY_SUM else ''}CAST({whole} AS {call.type})"


def average(call: Call, total: str, count: str) -> str:
    """Write an AVG from the exact total of its values and their number, NULL for none."""
    size = digits_of(call.type)
    if call.kind.startswith("DECIMAL") and size is not None:
        texts = f"CAST({total} AS VARCHAR), CAST({count} AS VARCHAR)"
        return f"CAST(spark_divided({texts}, {size[0]}, {size[1]}) AS {call.type})"
    # By way of text: the nearest double of a whole number of any size.
    return f"(CAST(CAST({total} AS VARCHAR) AS DOUBLE) / {count})"


def ordered(call: Call, value: str, over: str) -> str:
    """Write what is made of values in ascending order, or in one of its own."""
    word = "DISTINCT " if call.distinct else ""
    match call.function:
        case Function.LIST:
            assert call.default is not None, "a list has something between two values"
            order = ", ".join(_order(call, value))
            return f"string_agg({word}{value}, {quoted(call.default.name)} ORDER BY {order}){over}"
        case Function.PERCENTILE:
            values = f"list_sort({_known(f'list({with_one_zero(value, call)}){over}')})"
            count = f"count({value}){over}"
            first, second = "list_extract(ends, 1)", "list_extract(ends, 2)"
            low, choice = percentile_sql(call, count, first, second)
            places = ", ".join(f"CAST({low} AS BIGINT) + {place}" for place in (1, 2))
            chosen = f"list_transform([list_slice({values}, {places})], lambda ends: {choice})"
            return f"CASE WHEN {count} > 0 THEN list_extract({chosen}, 1) END"
        case Function.MODE:
            one = with_one_zero(value, call)
            return f"mode({one} ORDER BY {one}){over}"
        case Function.ELEMENT:
            values = f"list_sort({_known(f'list({with_one_zero(value, call)}){over}')})"
            count = f"count({value}){over}"
            place = f"CAST({element_place(call, count)} AS BIGINT)"
            return f"CASE WHEN {count} > 0 THEN list_extract({values}, {place}) END"
        case Function.VARIANCE:
            values = f"list(CAST({value} AS DOUBLE)){over}"
            known = f"list_sort({_known(values)})"
            # The first one is added to 0, as to all others.
            total = f"list_reduce({known}, lambda total, one: total + one, CAST(0 AS DOUBLE))"
            mean = f"({total} / count({value}){over})"
            parts = f"list_transform({known}, lambda one: (one - {mean}) * (one - {mean}))"
            squares = f"list_reduce({parts}, lambda total, one: total + one, CAST(0 AS DOUBLE))"
            return variance_sql(call, squares, f"count({value}){over}")
        case _:
            raise AssertionError(f"{call.function} is Spark's alone")


def _order(call: Call, value: str) -> list[str]:
    """Write the order of a list; rows that one of its own does not tell apart stand by time."""
    # What is distinct is ordered by itself: DuckDB takes no other column of the same values.
    keys = []
    for each in call.order:
        name = value if call.distinct else duckdb_name(each.column)
        direction = "DESC" if each.descending else "ASC"
        keys.append(f"{name} {direction} NULLS {'FIRST' if each.nulls_first else 'LAST'}")
    if call.distinct and keys:
        return keys
    return [*keys, *(ORDER if keys else ()), value]


def _known(values: str) -> str:
    """Write a list without its NULLs: a list takes them, where an aggregate passes over them."""
    return f"list_filter({values}, lambda one: one IS NOT NULL)"
