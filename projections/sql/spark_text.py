"""The words of Spark SQL for the plan tree."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from projections.sql.batch import plain
from projections.sql.catalog import Column
from projections.sql.expressions import render
from projections.sql.shape import ORDER
from projections.sql.totals import total_sql
from projections.sql.tree import Call, Function
from projections.sql.types import FLOATING
from schemas.identifiers import spark_name


class SparkText:
    """Writes operators as Spark SQL; see `projections.sql.batch.Dialect`."""

    semi = "LEFT SEMI"
    anti = "LEFT ANTI"

    def name(self, name: str) -> str:
        """Quote a name."""
        return spark_name(name)

    def expression(self, node: exp.Expr, columns: Sequence[Column]) -> str:
        """Write an expression as its author did."""
        return render(node)

    def micros(self, moment: str) -> str:
        """Turn a moment into microseconds since 1970."""
        return f"unix_micros(CAST({moment} AS TIMESTAMP))"

    def moment(self, micros: str) -> str:
        """Turn microseconds since 1970 into a moment."""
        return f"timestamp_micros({micros})"

    def whole_number(self, value: int) -> str:
        """Write a BIGINT."""
        return f"{value}L"

    def modulo(self, value: str, size: int) -> str:
        """Write the remainder that is never negative."""
        return f"pmod({value}, {size}L)"

    def numbers(self, count: int) -> str:
        """Return a FROM item with the column `__i` from 0 to count - 1."""
        return f"(SELECT explode(sequence(0L, {count - 1}L)) AS __i) AS numbers"

    def call(self, call: Call, over: str = "") -> str:
        """Write a function over rows; with `over` as a window function."""
        value = "1" if call.argument is None else spark_name(call.argument)
        word = "DISTINCT " if call.distinct else ""
        match call.function:
            case Function.NEWEST:
                return self.newest(value, told_apart=plain(call.kind))
            case Function.SUM | Function.AVG:
                average = call.function is Function.AVG
                return total_sql(
                    value, call.kind, average=average, distinct=call.distinct, over=over
                )
            case Function.MIN | Function.MAX if call.kind in FLOATING:
                # There are two zeros, which compare as equal: without a sign it is one.
                return f"{call.function}({value} + CAST(0 AS {call.kind})){over}"
            case Function.ROW_NUMBER | Function.RANK | Function.DENSE_RANK:
                return f"{call.function}(){over}"
            case Function.LAG | Function.LEAD:
                return f"{call.function}({value}, {call.offset}){over}"
            case _:
                return f"{call.function}({word}{value}){over}"

    def newest(self, value: str, *, told_apart: bool) -> str:
        """Write the value, NULL included, that a group's newest row has."""
        more = f", {value} IS NOT NULL, {value}" if told_apart else ""
        return f"max_by({value}, struct({', '.join(ORDER)}{more}))"

    def later(self, left: str, right: str) -> str:
        """Write that the row `right` comes after the row `left`."""
        ours, theirs = (
            f"struct({', '.join(f'{side}.{name}' for name in ORDER)})" for side in (left, right)
        )
        return f"{right}._time IS NOT NULL AND {theirs} > {ours}"
