"""Totals that do not depend on the order in which rows are added, as Spark SQL.

Adding floating-point numbers does depend on it: their total is computed exactly, and rounded once,
by a function that both engines call (`projections.run.exact_totals`). So does adding BIGINTs, where
it leaves their range on the way to a total within it: they are added as decimals.
An average of whole numbers is their exact total divided once.
"""

from __future__ import annotations

from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import (
    PARTS_TYPE,
    Call,
    Function,
    Grouped,
    Node,
    Over,
    Sessions,
    walk,
)
from projections.sql.values.expressions import render
from projections.sql.words.decimals import FLOATING, INTEGERS, MOST_DIGITS, digits_of
from schemas.identifiers import spark_name

EXACT_TOTAL, EXACT_PARTS = "penstock_total", "penstock_parts"
"""The names under which an engine finds these functions of a list of doubles."""
RANKS = (Function.RANK, Function.DENSE_RANK, Function.PERCENT_RANK, Function.CUME_DIST)
"""Functions for which rows of equal order are one; all others tell such rows apart."""
_OF_DOUBLES = (Function.SUM, Function.AVG, Function.TRY_SUM, Function.PARTS)
KNOWN = {
    Function.FIRST_KNOWN: Function.FIRST_VALUE,
    Function.LAST_KNOWN: Function.LAST_VALUE,
    Function.LAG_KNOWN: Function.LAG,
    Function.LEAD_KNOWN: Function.LEAD,
    Function.NTH_KNOWN: Function.NTH_VALUE,
}
"""Functions that pass over rows whose value is NULL, and those that they are otherwise."""
ORDERED = (
    *(Function.LIST, Function.VALUES, Function.PERCENTILE, Function.VARIANCE),
    *(Function.ELEMENT, Function.MODE),
)
"""These, and what is made of values in ascending order: one text, an array, numbers."""


def adds_doubles(tree: Node) -> bool:
    """Say whether an exact total of floating-point numbers is computed in a tree."""
    return any(
        call.function in _OF_DOUBLES and call.kind in FLOATING
        for node in walk(tree)
        if isinstance(node, Grouped | Sessions | Over)
        for call in node.calls
    )


def total_sql(
    value: str,
    kind: str,
    *,
    average: bool,
    distinct: bool,
    over: str = "",
    fallible: bool = True,
) -> str:
    """Write SUM or AVG of `value`, which has the type `kind`; `over` makes it a window function.

    What is not `fallible` is NULL where the total leaves its type.
    """
    if distinct and over and kind not in FLOATING:
        return _distinct_over(value, kind, average=average, over=over)
    word = "DISTINCT " if distinct else ""
    count = f"nullif(count({word}{value}){over}, 0)"
    if kind in FLOATING:
        total = f"{EXACT_TOTAL}({_doubles(value, distinct, over)})"
        return f"({total} / {count})" if average else total
    if kind in INTEGERS and average:
        exact = f"sum({word}CAST({value} AS DECIMAL(38, 0))){over}"
        return divided_sql(exact, count)
    if kind == "BIGINT":
        # The smaller numbers are too few to get that far. The cast refuses a total out of range.
        cast = "CAST" if fallible else "TRY_CAST"
        return f"{cast}(sum({word}CAST({value} AS DECIMAL(20, 0))){over} AS BIGINT)"
    return f"{'avg' if average else 'sum'}({word}{value}){over}"


def _distinct_over(value: str, kind: str, *, average: bool, over: str) -> str:
    """Write SUM or AVG of distinct exact numbers before OVER, where Spark has no DISTINCT."""
    digits, scale = digits_of(kind) or (20, 0)
    wide = f"DECIMAL({min(MOST_DIGITS, digits + 10)},{scale})"
    values = f"collect_set(CAST({value} AS {wide})){over}"
    added = f"aggregate({values}, CAST(0 AS {wide}), (total, one) -> CAST(total + one AS {wide}))"
    count = f"size({values})"
    if average:
        return f"CASE WHEN {count} > 0 THEN CAST({added} AS DOUBLE) / {count} END"
    total = f"CAST({added} AS BIGINT)" if kind in INTEGERS else added
    return f"CASE WHEN {count} > 0 THEN {total} END"


def ordered_sql(call: Call, value: str, over: str) -> str:
    """Write what is made of values in ascending order, or in one of its own."""
    gathered = f"{'collect_set' if call.distinct else 'collect_list'}({value}){over}"
    count = f"count({value}){over}"
    match call.function:
        case Function.VALUES:
            return f"array_sort({gathered})" if not call.order else _in_order(call, value)
        case Function.LIST:
            assert call.default is not None, "a list has something between two values"
            values = f"array_sort({gathered})" if not call.order else _in_order(call, value)
            listed = f"array_join({values}, {render(call.default)})"
            return f"CASE WHEN {count} > 0 THEN {listed} END"
        case Function.MODE:
            # Of several that are there as often it is the least.
            return f"mode({with_one_zero(value, call)}, true){over}"
        case Function.ELEMENT:
            values = f"array_sort(collect_list({with_one_zero(value, call)}){over})"
            place = f"CAST({element_place(call, count)} AS INT)"
            return f"CASE WHEN {count} > 0 THEN element_at({values}, {place}) END"
        case Function.VARIANCE:
            values = f"array_sort(collect_list(CAST({value} AS DOUBLE)){over})"
            total = f"aggregate({values}, 0D, (total, one) -> total + one)"
            begun = f"struct(0D AS total, ({total} / {count}) AS mean)"
            one = "(one - so_far.mean) * (one - so_far.mean)"
            next_ = f"struct(so_far.total + {one} AS total, so_far.mean AS mean)"
            squares = f"aggregate({values}, {begun}, (so_far, one) -> {next_}, end -> end.total)"
            return variance_sql(call, squares, count)
        case _:
            values = f"array_sort(collect_list({with_one_zero(value, call)}){over})"
            low, choice = percentile_sql(call, count, "ends[0]", "ends[1]")
            ends = f"slice({values}, CAST({low} + 1 AS INT), 2)"
            return f"CASE WHEN {count} > 0 THEN transform(array({ends}), ends -> {choice})[0] END"


def _in_order(call: Call, value: str) -> str:
    """Write the values of a group in an order that is not their own.

    Rows that it does not tell apart stand in the order of event time, then by their values.
    """
    keys = [(spark_name(each.column), each.descending, each.nulls_first) for each in call.order]
    if not call.distinct:
        keys += [(name, False, False) for name in (*ORDER, value)]
    fields = ", ".join(f"{key} AS k{place}" for place, (key, _, _) in enumerate(keys))
    row = f"CASE WHEN {value} IS NOT NULL THEN struct({fields}, {value} AS v) END"
    rows = f"{'collect_set' if call.distinct else 'collect_list'}({row})"
    compared = " ".join(
        _compared(f"k{place}", descending=descending, nulls_first=nulls_first)
        for place, (_, descending, nulls_first) in enumerate(keys)
    )
    ordered = f"array_sort({rows}, (l, r) -> CASE {compared} ELSE 0 END)"
    return f"transform({ordered}, one -> one.v)"


def _compared(field: str, *, descending: bool, nulls_first: bool) -> str:
    left, right, first = f"l.{field}", f"r.{field}", -1 if nulls_first else 1
    less = 1 if descending else -1
    return (
        f"WHEN {left} IS NULL AND {right} IS NOT NULL THEN {first} "
        f"WHEN {left} IS NOT NULL AND {right} IS NULL THEN {-first} "
        f"WHEN {left} < {right} THEN {less} WHEN {left} > {right} THEN {-less}"
    )


def variance_sql(call: Call, squares: str, count: str) -> str:
    """Write a variance from the sum of squares; of the one row of a sample there is none."""
    apart = f"{count} - {call.offset}" if call.offset else count
    return f"CASE WHEN {count} > {call.offset} THEN {squares} / CAST({apart} AS DOUBLE) END"


def with_one_zero(value: str, call: Call) -> str:
    """Write a value of which there are not two zeros, that are equal and written differently."""
    return f"{value} + CAST(0 AS {call.kind})" if call.kind in FLOATING else value


def element_place(call: Call, count: str) -> str:
    """Write the place, from 1, of the least of sorted values below or at which a part of them is.

    As in Spark the part is a DOUBLE: 0.07 of 100 values is a little more than 7 of them. Where the
    call's offset is negative they are counted from the greatest one.
    """
    assert call.default is not None, "a part is written out"
    whole = f"ceil(CAST('{call.default.name}' AS DOUBLE) * CAST({count} AS DOUBLE))"
    place = f"greatest(1, CAST({whole} AS BIGINT))"
    return place if call.offset > 0 else f"({count} + 1 - {place})"


def percentile_sql(call: Call, count: str, first: str, second: str) -> tuple[str, str]:
    """Write the place, from 0, of the first of two sorted values, and what lies at a part of all.

    `first` and `second` are the value at that place and the next one: the percentile lies between
    them in proportion, counted from the greatest one where the call's offset is negative. Both
    engines have the same operations, in this order: those of Spark's own percentile, to which there
    is nothing between two that are equal.
    """
    part = "0.5" if call.default is None else call.default.name
    at = f"(CAST('{part}' AS DOUBLE) * CAST({count} - 1 AS DOUBLE))"
    low, high = f"floor({at})", f"ceil({at})"
    above, below = f"(CAST({high} AS DOUBLE) - {at})", f"({at} - CAST({low} AS DOUBLE))"
    start, lower, upper = low, first, second
    if call.offset < 0:
        start, lower, upper = f"({count} - 1 - {high})", second, first
    between = f"({above} * CAST({lower} AS DOUBLE)) + ({below} * CAST({upper} AS DOUBLE))"
    same = f"{low} = {high} OR {first} = {second}"
    return start, f"CASE WHEN {same} THEN CAST({first} AS DOUBLE) ELSE {between} END"


def divided_sql(total: str, count: str) -> str:
    """Write the average of whole numbers from their exact total and their number."""
    return f"(CAST({total} AS DOUBLE) / {count})"


def parts_sql(call: Call, value: str) -> str:
    """Write the parts of the exact total of doubles, or of values that have such parts."""
    if call.kind == PARTS_TYPE:
        return f"{EXACT_PARTS}(flatten(collect_list({value})))"
    return f"{EXACT_PARTS}({_doubles(value, False, '')})"


def _doubles(value: str, distinct: bool, over: str) -> str:
    return f"{'collect_set' if distinct else 'collect_list'}(CAST({value} AS DOUBLE)){over}"
