"""The words of DuckDB for the plan tree: only what `certified` lists is ever asked for.

Moments are kept as `TIMESTAMP` without a zone, in UTC. Whatever Spark refuses in a row, as a
division by zero, is an error here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlglot import exp

from kernel.errors import BeyondThisProcess, InvalidRequest
from projections.sql.operators.tree import Call, Exploded
from projections.sql.rendering.duckdb_totals import average, ordered, total
from projections.sql.values.expressions import never_fails, render
from projections.sql.values.scalar import is_null
from projections.sql.values.scalars import scalar_of
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column
from projections.sql.words.decimals import FLOATING, INTEGERS, rounded_type
from projections.sql.words.duckdb_types import duckdb_type
from projections.sql.words.durations import duration_of, in_us
from projections.sql.words.functions import function_of
from projections.sql.words.nested_types import StructOf, nested_of
from projections.sql.words.time_formats import FIELDS, YEAR, format_parts, moment_formatted
from schemas.identifiers import duckdb_name

MOST_TEXT = 2**18
"""Longer expressions are not computed here: some repeat their parts, which repeat theirs."""
_COMPUTED = (exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv)
_UNITS_US = {"SECOND": 10**6, "MINUTE": 60 * 10**6, "HOUR": 3600 * 10**6, "DAY": 86400 * 10**6}
_SIGNS: dict[type[exp.Expr], str] = {
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "IS NOT DISTINCT FROM",
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.DPipe: "||",
    exp.Is: "IS",
}
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ)
_FUNCTIONS: dict[type[exp.Expr], str] = {
    exp.Coalesce: "coalesce",
    exp.Greatest: "greatest",
    exp.Least: "least",
    exp.Abs: "abs",
    exp.Nullif: "nullif",
    exp.StartsWith: "starts_with",
    exp.EndsWith: "ends_with",
    exp.Contains: "contains",
    exp.Replace: "replace",
    exp.SplitPart: "split_part",
}


class DuckText:
    """Writes operators for DuckDB; see `projections.sql.rendering.dialect.Dialect`."""

    semi = "SEMI"
    anti = "ANTI"
    by_order = True
    divides_decimals = True

    def name(self, name: str) -> str:
        """Quote a name."""
        return duckdb_name(name)

    def expression(self, node: exp.Expr, columns: Sequence[Column]) -> str:
        """Write a certified expression."""
        return _Expressions(columns).text(node)

    def conditions(self, parts: Sequence[exp.Expr], columns: Sequence[Column]) -> str:
        """Write conditions, in their order where one may be an error in a row.

        DuckDB asks the cheap ones of an AND first, and takes our functions for cheap ones that
        never fail: a row that an earlier condition was to keep out would end the run.
        """
        texts = [f"({self.expression(part, columns)})" for part in parts]
        if all(never_fails(part) for part in parts[1:]):
            return " AND ".join(texts)
        *firsts, text = texts
        for first in reversed(firsts):
            text = f"CASE WHEN {first} THEN {text} ELSE false END"
        return text

    def micros(self, moment: str) -> str:
        """Turn a moment into microseconds since 1970."""
        return f"epoch_us(CAST({moment} AS TIMESTAMP))"

    def moment(self, micros: str) -> str:
        """Turn microseconds since 1970 into a moment."""
        return f"make_timestamp(CAST({micros} AS BIGINT))"

    def whole_number(self, value: int) -> str:
        """Write a BIGINT."""
        return f"CAST({value} AS BIGINT)"

    def modulo(self, value: str, size: int) -> str:
        """Write the remainder that is never negative."""
        return f"(({value} % {size} + {size}) % {size})"

    def numbers(self, count: int) -> str:
        """Return a FROM item with the column `__i` from 0 to count - 1."""
        return f"range({count}) AS numbers(__i)"

    def total(self, call: Call, value: str, over: str) -> str:
        """Write SUM or AVG of a value, the same in whatever order the rows are added."""
        return total(call, value, over)

    def average(self, call: Call, total: str, count: str) -> str:
        """Write an AVG from the exact total of its values and their number, NULL for none."""
        return average(call, total, count)

    def ordered(self, call: Call, value: str, over: str) -> str:
        """Write what is made of values in ascending order, or in one of its own."""
        return ordered(call, value, over)

    def passing_nulls(self, name: str, arguments: str) -> str:
        """Write a function of rows that passes over those in which its value is NULL."""
        return f"{name}({arguments} IGNORE NULLS)"

    def rank(self, call: str) -> str:
        """Write a rank as an INT, from the call that gives it."""
        return f"CAST({call} AS INTEGER)"

    def row(self, values: Sequence[str]) -> str:
        """Write several values as one that is compared from left to right."""
        return f"row({', '.join(values)})"

    def gathered(self, fields: Sequence[tuple[str, str]]) -> str:
        """Write the rows of a group as a list of structs, from names and values."""
        return f"list(struct_pack({', '.join(f'{n} := {v}' for n, v in fields)}))"

    def each(self, values: str) -> str:
        """Write the elements of a list as rows."""
        return f"unnest({values})"

    def elements(self, columns: str, rows: str, node: Exploded) -> str:
        """Write rows once for each element: `columns`, its place `__i` from 0, itself as `__e`."""
        values = duckdb_name(node.values)
        values = f"map_entries({values})" if node.entries else values
        places = f"range(len({values}))"
        if node.outer:
            values, places = (
                f"CASE WHEN len({values}) > 0 THEN {each} ELSE [NULL] END"
                for each in (values, places)
            )
        # Two lists that are unnested beside each other go in step.
        own = f"CAST(unnest({places}) AS INTEGER) AS __i, unnest({values}) AS __e"
        return f"SELECT {columns}, {own} FROM ({rows}) AS x"

    def field(self, value: str, name: str) -> str:
        """Write a field of a struct."""
        return _field(value, name)

    def apart(self, value: str, kind: str) -> list[str]:
        """Write what values of a type are ordered by, so that only those that are the same tie."""
        # The two zeros are equal: as in Spark, the one with a sign is in front.
        return [value, f"({value} <> 0 OR NOT signbit({value}))"] if kind in FLOATING else [value]

    def of_greatest(self, value: str, by: str) -> str:
        """Write the value, NULL included, of the row where `by` is greatest in its group."""
        return f"arg_max_null({value}, {by})"

    def of_greatest_row(self, name: str, columns: Sequence[str]) -> str:
        """Write one of some columns as the row has it where they are greatest.

        All of them are fields of one greatest row, for which DuckDB goes through the rows once.
        """
        fields = ", ".join(f"'{each}': {each}" for each in columns)
        return _field(f"max({{{fields}}})", name)

    def of_least(self, value: str, by: str) -> str:
        """Write the value, NULL included, of the row where `by` is least in its group."""
        return f"arg_min_null({value}, {by})"


def _field(value: str, name: str) -> str:
    return "struct_extract(" + value + ", '" + "''".join(name.split("'")) + "')"


class _Expressions:
    """Writes expressions over given columns."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._types = {each.name: each.type for each in columns}

    def text(self, node: exp.Expr) -> str:
        """Write an expression, in brackets where it has parts.

        Raises `BeyondThisProcess` for one that is too long.
        """
        scalar = scalar_of(node, self._type)
        if scalar is not None:
            text = scalar.written([self.text(part) for part in scalar.parts])
        else:
            text = self._writer(node)(node)
        if len(text) > MOST_TEXT:
            raise BeyondThisProcess(f"{render(node)[:60]}…, which is too long")
        return text

    def _writer(self, node: exp.Expr) -> Callable[[exp.Expr], str]:
        for kinds, writer in (
            ((exp.Column, exp.Literal, exp.Boolean, exp.Null), self._value),
            ((exp.Paren, exp.Not, exp.Neg, exp.Length, exp.UnixMicros), self._of_one),
            ((exp.Div, exp.Mod, exp.IntDiv), self._divided),
            ((exp.Case, exp.If), self._choice),
            ((exp.Between, exp.In), self._among),
            (exp.TimestampTrunc, self._truncated),
            (exp.Concat, self._concat),
            (exp.TimeToStr, self._formatted),
            (exp.Anonymous, self._called),
            (exp.Dot, self._field),
            (exp.Array, self._array),
            (tuple(_FUNCTIONS), self._function),
            ((exp.And, exp.Or), self._connected),
            (tuple(_SIGNS), self._sign),
        ):
            if isinstance(node, kinds):
                return writer
        raise InvalidRequest(
            f"{render(node)} is not computed by the small executor",
            remedy="Report this: the planner was to give it to Spark.",
        )

    def _type(self, node: exp.Expr) -> str:
        return type_of(node, lambda found: self._types.get(found.name, ""))

    def _value(self, node: exp.Expr) -> str:
        if isinstance(node, exp.Column):
            return duckdb_name(node.name)
        if isinstance(node, exp.Literal) and node.is_string:
            return "'" + "''".join(node.name.split("'")) + "'"
        if isinstance(node, exp.Literal):
            return f"CAST({node.name} AS {self._type(node)})"
        return "NULL" if isinstance(node, exp.Null) else str(node.this).upper()

    def _of_one(self, node: exp.Expr) -> str:
        inner = self.text(node.this)
        match node:
            case exp.Not():
                return f"(NOT {inner})"
            case exp.Neg():
                return f"(- {inner})"
            case exp.Length():
                return f"CAST(length({inner}) AS INTEGER)"
            case exp.UnixMicros():
                return f"epoch_us({inner})"
            case _:
                return f"({inner})"

    def _array(self, node: exp.Expr) -> str:
        return f"[{', '.join(map(self.text, node.expressions))}]"

    def _sign(self, node: exp.Expr) -> str:
        left, right, sign = node.this, node.expression, _SIGNS[type(node)]
        if isinstance(right, exp.Interval):
            length = duration_of(right)
            us = in_us(length) if length is not None else 0
            return f"make_timestamp(epoch_us({self.text(left)}) {sign} {us})"
        if isinstance(node, exp.Is | exp.NullSafeEQ) and isinstance(right, exp.Null):
            return f"({is_null(left, self.text(left))})"
        written = self._compared if isinstance(node, _COMPARISONS) else self.text
        kind, texts = rounded_type(*map(self._type, (left, right))), [*map(written, (left, right))]
        texts = [f"CAST({each} AS {kind})" for each in texts] if kind else texts
        return f"({texts[0]} {sign} {texts[1]})"

    def _compared(self, node: exp.Expr) -> str:
        """Write a side of a comparison.

        DuckDB makes `n > 2` of `n + 1 > 3`, where no sum is too large: COALESCE keeps it as it is.
        """
        text = self.text(node)
        sure = never_fails(node) or self._type(node) not in INTEGERS
        return text if sure else f"coalesce({text}, NULL)"

    def _connected(self, node: exp.Expr) -> str:
        """Write a chain of AND or OR, which may be long.

        Spark asks from left to right, and no further once it knows. DuckDB asks in an order of its
        own: where a part may be an error in a row, those before it decide whether it is asked.
        """
        parts = [*node.flatten(unnest=False)]
        texts = [self.text(part) for part in parts]
        sign, known = ("AND", "false") if isinstance(node, exp.And) else ("OR", "true")
        if all(never_fails(part) for part in parts[1:]):
            return f"({f' {sign} '.join(texts)})"
        *firsts, text = texts
        for first in reversed(firsts):
            decided = f"WHEN {first} IS NOT DISTINCT FROM {known} THEN {known}"
            text = f"(CASE {decided} ELSE {first} {sign} {text} END)"
        return text

    def _divided(self, node: exp.Expr) -> str:
        left, right = self.text(node.this), self.text(node.expression)
        match node:
            case exp.Div():
                value = f"CAST({left} AS DOUBLE) / CAST({right} AS DOUBLE)"
            case exp.Mod():
                # The least number by -1 is out of range to DuckDB; what is left over is always 0.
                value = f"{left} % CASE WHEN {right} = -1 THEN 1 ELSE {right} END"
            case _:
                value = f"CAST({left} AS BIGINT) // CAST({right} AS BIGINT)"
        known = f"{self._known(node.this)} AND {right} = 0"
        return f"(CASE WHEN {known} THEN error('division by zero') ELSE {value} END)"

    def _known(self, node: exp.Expr) -> str:
        """Write that a number is not NULL.

        What is computed of others is known where they are: so a chain is not written again and
        again.
        """
        if not isinstance(node, _COMPUTED):
            return f"{self.text(node)} IS NOT NULL"
        sides = (node.this, node.args.get("expression"))
        return " AND ".join(self._known(side) for side in sides if side is not None)

    def _choice(self, node: exp.Expr) -> str:
        if isinstance(node, exp.If):
            otherwise = node.args.get("false")
            whens = f"WHEN {self.text(node.this)} THEN {self.text(node.args['true'])}"
            subject = ""
        else:
            otherwise = node.args.get("default")
            subject = f"{self._compared(node.this)} " if node.this is not None else ""
            asked = self._compared if subject else self.text
            whens = " ".join(
                f"WHEN {asked(each.this)} THEN {self.text(each.args['true'])}"
                for each in node.args["ifs"]
            )
        last = "" if otherwise is None else f" ELSE {self.text(otherwise)}"
        kind = duckdb_type(self._type(node))
        return f"CAST(CASE {subject}{whens}{last} END AS {kind})"

    def _among(self, node: exp.Expr) -> str:
        value = self._compared(node.this)
        if isinstance(node, exp.Between):
            low, high = (self._compared(node.args[end]) for end in ("low", "high"))
            return f"({value} BETWEEN {low} AND {high})"
        return f"({value} IN ({', '.join(map(self._compared, node.expressions))}))"

    def _truncated(self, node: exp.Expr) -> str:
        size = _UNITS_US[node.text("unit").upper()]
        us = f"epoch_us({self.text(node.this)})"
        return f"make_timestamp({us} - (({us} % {size} + {size}) % {size}))"

    def _concat(self, node: exp.Expr) -> str:
        return f"({' || '.join(map(self.text, node.expressions))})"

    def _called(self, node: exp.Expr) -> str:
        function = function_of(node)
        assert function is not None, "only functions of the workspace are certified"
        parts = [
            f"CAST({self.text(given)} AS {duckdb_type(parameter.type)})"
            for parameter, given in zip(function.takes, node.expressions, strict=True)
        ]
        return f"{duckdb_name(function.known_as)}({', '.join(parts)})"

    def _field(self, node: exp.Expr) -> str:
        struct = nested_of(self._type(node.this))
        assert isinstance(struct, StructOf), "fields of structs alone are certified"
        found = struct.field(node.expression.name)
        assert found is not None, "a field is known by its type"
        return _field(self.text(node.this), found[0])

    def _formatted(self, node: exp.Expr) -> str:
        """Write fields with leading zeros; the year before 1 is 0, and the one before that -1."""
        moment = self.text(moment_formatted(node))
        written = []
        for part in format_parts(node) or []:
            field = f"{FIELDS[part]}({moment})" if part in FIELDS else ""
            if not field:
                written.append(f"'{part}'")
            elif part != YEAR:
                written.append(f"lpad(CAST({field} AS VARCHAR), 2, '0')")
            else:
                sign = f"CASE WHEN {field} < 0 THEN '-' WHEN {field} > 9999 THEN '+' ELSE '' END"
                # Unlike lpad this keeps the digits of a longer year.
                written.append(f"{sign} || printf('%04d', abs({field}))")
        return f"({' || '.join(f'({each})' for each in written)})"

    def _function(self, node: exp.Expr) -> str:
        match node:
            case exp.Nullif() | exp.StartsWith() | exp.EndsWith() | exp.Contains():
                others = [node.expression]
            case exp.SplitPart():
                others = [node.args["delimiter"], node.args["part_index"]]
            case exp.Replace():
                others = [node.expression, node.args.get("replacement") or exp.Literal.string("")]
            case _:
                others = node.expressions
        parts = [self.text(each) for each in (node.this, *others) if each is not None]
        return f"{_FUNCTIONS[type(node)]}({', '.join(parts)})"
