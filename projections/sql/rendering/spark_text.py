"""The words of Spark SQL for the plan tree."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import exp

from projections.sql.operators.tree import Call, Exploded, Function
from projections.sql.rendering.totals import divided_sql, ordered_sql, parts_sql, total_sql
from projections.sql.values.expressions import render
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import FLOATING, INTEGERS
from schemas.identifiers import spark_name

_NOT_ORDERED = re.compile("MAP<|FLOAT|DOUBLE|REAL", re.IGNORECASE)
"""In nested types: what has no order, or one in which both zeros are equal."""


class SparkText:
    """Writes operators as Spark SQL; see `projections.sql.rendering.dialect.Dialect`."""

    semi = "LEFT SEMI"
    anti = "LEFT ANTI"
    by_order = False
    divides_decimals = False

    def name(self, name: str) -> str:
        """Quote a name."""
        return spark_name(name)

    def expression(self, node: exp.Expr, columns: Sequence[Column]) -> str:
        """Write an expression as its author did."""
        return render(node)

    def conditions(self, parts: Sequence[exp.Expr], columns: Sequence[Column]) -> str:
        """Write conditions as their author did: Spark asks them in their order."""
        return " AND ".join(f"({self.expression(part, columns)})" for part in parts)

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

    def total(self, call: Call, value: str, over: str) -> str:
        """Write SUM, AVG, PARTS or COUNT of a value, the same in whatever order rows are added."""
        if call.function is Function.COUNT:
            # Spark has no DISTINCT before OVER.
            return f"CAST(size(collect_set({value}){over}) AS BIGINT)"
        if call.function is Function.PARTS:
            return parts_sql(call, value)
        average = call.function is Function.AVG
        return total_sql(
            value,
            call.kind,
            average=average,
            distinct=call.distinct,
            over=over,
            fallible=call.function is not Function.TRY_SUM,
        )

    def average(self, call: Call, total: str, count: str) -> str:
        """Write an AVG from the exact total of its values and their number, NULL for none."""
        assert call.kind in INTEGERS, "Spark rounds a quotient of decimals in a way of its own"
        return divided_sql(total, count)

    def ordered(self, call: Call, value: str, over: str) -> str:
        """Write what is made of values in ascending order, or in one of its own."""
        return ordered_sql(call, value, over)

    def passing_nulls(self, name: str, arguments: str) -> str:
        """Write a function of rows that passes over those in which its value is NULL."""
        return f"{name}({arguments}) IGNORE NULLS"

    def rank(self, call: str) -> str:
        """Write a rank as an INT, from the call that gives it."""
        return call

    def row(self, values: Sequence[str]) -> str:
        """Write several values as one that is compared from left to right."""
        return f"struct({', '.join(values)})"

    def gathered(self, fields: Sequence[tuple[str, str]]) -> str:
        """Write the rows of a group as a list of structs, from names and values."""
        return f"collect_list(struct({', '.join(f'{v} AS {n}' for n, v in fields)}))"

    def each(self, values: str) -> str:
        """Write the elements of a list as rows."""
        return f"explode({values})"

    def elements(self, columns: str, rows: str, node: Exploded) -> str:
        """Write rows once for each element: `columns`, its place `__i` from 0, itself as `__e`."""
        values = spark_name(node.values)
        values = f"map_entries({values})" if node.entries else values
        outer = "OUTER " if node.outer else ""
        view = f"LATERAL VIEW {outer}posexplode({values}) v AS __i, __e"
        return f"SELECT {columns}, __i, __e FROM ({rows}) AS x {view}"

    def field(self, value: str, name: str) -> str:
        """Write a field of a struct."""
        return f"{value}.{spark_name(name)}"

    def apart(self, value: str, kind: str) -> list[str]:
        """Write what values of a type are ordered by, so that only those that are the same tie."""
        if kind in FLOATING:
            # The two zeros are equal, and not written the same.
            return [value, f"CAST({value} AS STRING)"]
        # A type that is not known here may be any.
        return [value if kind and not _NOT_ORDERED.search(kind) else f"to_json(struct({value}))"]

    def of_greatest(self, value: str, by: str) -> str:
        """Write the value, NULL included, of the row where `by` is greatest in its group."""
        return f"max_by({value}, {by})"

    def of_greatest_row(self, name: str, columns: Sequence[str]) -> str:
        """Write one of some columns as the row has it where they are greatest."""
        return self.of_greatest(name, self.row(columns))

    def of_least(self, value: str, by: str) -> str:
        """Write the value, NULL included, of the row where `by` is least in its group."""
        return f"min_by({value}, {by})"
