"""Totals that do not depend on the order in which rows are added, as Spark SQL.

Adding floating-point numbers does depend on it: they are added in ascending order. So does adding
BIGINTs, where it leaves their range on the way to a total within it: they are added as decimals.
An average of whole numbers is their exact total divided once.
"""

from __future__ import annotations

from projections.sql.decimals import FLOATING, INTEGERS


def total_sql(value: str, kind: str, *, average: bool, distinct: bool, over: str = "") -> str:
    """Write SUM or AVG of `value`, which has the type `kind`; `over` makes it a window function."""
    word = "DISTINCT " if distinct else ""
    count = f"nullif(count({word}{value}){over}, 0)"
    if kind in FLOATING:
        total = _sorted_sum(value, distinct, over)
        return f"({total} / {count})" if average else total
    if kind in INTEGERS and average:
        exact = f"sum({word}CAST({value} AS DECIMAL(38, 0))){over}"
        return divided_sql(exact, count)
    if kind == "BIGINT":
        # The smaller numbers are too few to get that far. The cast refuses a total out of range.
        return f"CAST(sum({word}CAST({value} AS DECIMAL(20, 0))){over} AS BIGINT)"
    return f"{'avg' if average else 'sum'}({word}{value}){over}"


def divided_sql(total: str, count: str) -> str:
    """Write the average of whole numbers from their exact total and their number."""
    return f"(CAST({total} AS DOUBLE) / {count})"


def _sorted_sum(value: str, distinct: bool, over: str) -> str:
    collect = "collect_set" if distinct else "collect_list"
    return (
        f"aggregate(array_sort({collect}(CAST({value} AS DOUBLE)){over}), CAST(NULL AS DOUBLE), "
        "(total, one) -> coalesce(total + one, one))"
    )
