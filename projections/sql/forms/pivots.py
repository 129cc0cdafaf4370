"""PIVOT as the groups that it is: by all other columns of its input, with columns for each value.

As in Spark a column has the name of its value, and behind that the aggregate's where there are
several; and a value that no row of a group has gives NULL, also where a count would be 0, unless
one of the aggregates is a text or a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from projections.sql.operators.query import named_as, read_items
from projections.sql.operators.resolving import Names
from projections.sql.values.expressions import AGGREGATES, has_aggregate, unwrapped
from projections.sql.values.types import TEMPORAL
from projections.sql.words.places import Script, offset_of

NamesOf = Callable[[exp.Expr, str], Names]
"""Returns the names of the columns of a query, under an alias."""

_FORM = (
    "The form is FROM (SELECT key, region, amount FROM …) PIVOT (SUM(amount) FOR region IN "
    "('north', 'south' AS s)), which gives key, north and s."
)
_FURTHER = ("using", "group", "into", "include_nulls", "default_on_null", "with_")
"""What the parser reads beside, of other dialects."""
_OTHERS = ("STRING", "BINARY", *TEMPORAL)
_VALUES = (exp.Literal, exp.Boolean, exp.Null, exp.Cast, exp.Neg)


def alias_of(item: exp.Expr) -> str:
    """Return the name of an input, behind its PIVOT if it has one; empty for none."""
    aliases = [pivot.alias for pivot in item.args.get("pivots") or []]
    return str((aliases or [""])[-1] or item.alias_or_name)


def pivoted(script: Script, item: exp.Expr, query: exp.Expr, at: int, names: NamesOf) -> exp.Expr:
    """Return the query that an input stands for, with what its PIVOT makes of it.

    Raises `InvalidRequest` for a PIVOT with other than values, or without a name for a column.
    """
    alias = str(item.alias_or_name)
    for pivot in item.args.get("pivots") or []:
        query = _Pivot(script, pivot, alias, offset_of(pivot, at), names).of(query)
        alias = str(pivot.alias or alias)
    return query


def pivot_columns(script: Script, item: exp.Expr, query: exp.Expr, at: int) -> list[str] | None:
    """Return the columns of an input with one PIVOT; None for several."""
    pivots = item.args.get("pivots") or []
    if len(pivots) != 1:
        return None
    alias = str(item.alias_or_name)
    return _Pivot(script, pivots[0], alias, offset_of(pivots[0], at)).columns(query)


class _Pivot:
    """One PIVOT over the rows of a query, which are called `alias`."""

    def __init__(
        self,
        script: Script,
        pivot: exp.Expr,
        alias: str,
        at: int,
        names: NamesOf | None = None,
    ) -> None:
        self._names = names
        self._script = script
        self._pivot = pivot
        self._alias = alias
        self._at = at

    def columns(self, query: exp.Expr) -> list[str]:
        """Return the names of the columns that the groups have."""
        field, aggregates = self._parts()
        made = [each.alias for value in field.expressions for each in self._of(field, value, False)]
        return [*self._beside(query, [field.this, *aggregates]), *made]

    def of(self, query: exp.Expr) -> exp.Select:
        """Return the query of the groups."""
        field, aggregates = self._parts()
        empty = self._gives_null(query, aggregates)
        made = [column for value in field.expressions for column in self._of(field, value, empty)]
        groups = [exp.column(name) for name in self._beside(query, [field.this, *aggregates])]
        if not groups:
            raise self._refusal(self._pivot, "PIVOT leaves no column by which its rows are grouped")
        rows = exp.Subquery(this=query.copy())
        if self._alias:
            rows.set("alias", exp.TableAlias(this=exp.to_identifier(self._alias)))
        return exp.Select(
            expressions=[*(each.copy() for each in groups), *made],
            from_=exp.From(this=rows),
            group=exp.Group(expressions=groups),
        )

    def _parts(self) -> tuple[exp.In, list[exp.Expr]]:
        """Return the list of values, and the aggregates without their aliases."""
        fields = self._pivot.args.get("fields") or []
        field = fields[0] if len(fields) == 1 and isinstance(fields[0], exp.In) else None
        if field is None or field.args.get("query") or not field.expressions:
            raise self._refusal(self._pivot, "PIVOT is of one list of values")
        further = [name for name in _FURTHER if self._pivot.args.get(name)]
        named = self._pivot.args.get("alias")
        if further or (named is not None and named.args.get("columns")):
            word = " ".join(further).upper().replace("_", " ") or "names of columns"
            raise self._refusal(self._pivot, f"PIVOT with {word} is not in the dialect")
        return field, [self._checked(each) for each in self._pivot.expressions]

    def _checked(self, aggregate: exp.Expr) -> exp.Expr:
        """Return an aggregate without its alias; every column is to stand in one."""
        found = aggregate.unalias()
        outside = found.copy().transform(
            lambda node: exp.Null() if isinstance(node, (exp.Filter, *AGGREGATES)) else node
        )
        if not has_aggregate(found) or outside.find(exp.Column):
            raise self._refusal(aggregate, "PIVOT computes aggregates alone")
        return found

    def _beside(self, query: exp.Expr, read: list[exp.Expr]) -> Iterator[str]:
        """Yield the columns of a query that are read by nothing."""
        while isinstance(query, exp.SetOperation | exp.Subquery):
            query = query.this
        names = [item.name for item in read_items(self._script, query, self._at)]
        parts = [
            [part.name.lower() for part in found.parts]
            for each in read
            for found in each.find_all(exp.Column)
        ]
        own = self._alias.lower()
        used = {each[1] if len(each) > 1 and each[0] == own else each[0] for each in parts}
        return (name for name in names if name.lower() not in used)

    def _gives_null(self, query: exp.Expr, aggregates: list[exp.Expr]) -> bool:
        """Say whether a value that no row has gives NULL where an aggregate of no rows is another.

        Spark groups by the values too, and so has no such row, if no aggregate is a text or a time.
        """
        if all(map(_is_null_of_none, aggregates)):
            return False
        assert self._names is not None, "it is read, not only named"
        names = self._names(query, self._alias or "rows")
        kinds = [names.type_of(names.flat(names.scope.resolve(each))) for each in aggregates]
        return all(kind not in _OTHERS for kind in kinds)

    def _of(self, field: exp.Expr, value: exp.Expr, empty: bool) -> Iterator[exp.Expr]:
        """Yield the columns of a value, one for each aggregate."""
        given = unwrapped(value.this if isinstance(value, exp.PivotAlias) else value)
        holds = self._holds(field.this, given)
        for aggregate in self._pivot.expressions:
            name = value.alias or self._text(given)
            if len(self._pivot.expressions) > 1:
                name = f"{name}_{aggregate.alias}" if aggregate.alias else ""
            if not named_as(name):
                raise self._refusal(
                    value,
                    "a column of PIVOT without a name of letters, digits and _",
                    fix="Name the value, IN ('north-east' AS north_east), and of several "
                    "aggregates each: PIVOT (SUM(x) AS total, COUNT(*) AS n FOR …).",
                )
            found = aggregate.unalias()
            made = _only(found, holds)
            if empty and not _is_null_of_none(found):
                there = exp.GT(
                    this=exp.CountIf(this=holds.copy()), expression=exp.Literal.number(0)
                )
                made = exp.Case(ifs=[exp.If(this=there, true=made)])
            yield exp.alias_(made, name)

    def _holds(self, of: exp.Expr, value: exp.Expr) -> exp.Expr:
        """Write that a row has a value, or several of a list in brackets."""
        columns, values = _listed(of), _listed(value)
        if len(columns) != len(values):
            raise self._refusal(value, "a value of PIVOT has not as many parts as its columns")
        parts: list[exp.Expr] = []
        for column, part in zip(columns, values, strict=True):
            if not isinstance(unwrapped(part), _VALUES) or part.find(exp.Column, exp.Query):
                raise self._refusal(value, "what PIVOT lists are values, written out")
            null = isinstance(part, exp.Null)
            parts.append((exp.Is if null else exp.EQ)(this=column.copy(), expression=part.copy()))
        return exp.and_(*parts)

    def _text(self, value: exp.Expr) -> str:
        """Return the name that Spark gives a value; empty for one that names no column."""
        if isinstance(value, exp.Boolean | exp.Null):
            return value.sql(dialect="spark").lower()
        return value.name if isinstance(value, exp.Literal) else ""

    def _refusal(self, node: exp.Expr, message: str, fix: str = _FORM) -> Exception:
        return self._script.refusal(message, at=offset_of(node, self._at), fix=fix)


def _listed(node: exp.Expr) -> list[exp.Expr]:
    return node.expressions if isinstance(node, exp.Tuple) else [node]


def _only(aggregate: exp.Expr, holds: exp.Expr) -> exp.Expr:
    """Return what is computed from the rows of a group for which a condition holds."""

    def filtered(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, (exp.Filter, *AGGREGATES)):
            return node
        plain = not isinstance(node, exp.Filter)
        parts = [holds.copy()] if plain else [holds.copy(), node.expression.this.copy()]
        where = exp.Where(this=exp.and_(*parts))
        return exp.Filter(this=(node if plain else node.this).copy(), expression=where)

    return aggregate.copy().transform(filtered)


def _is_null_of_none(aggregate: exp.Expr) -> bool:
    """Say whether an aggregate of no rows is NULL, as of a plain one that counts nothing."""
    inner = aggregate.this if isinstance(aggregate, exp.Filter) else aggregate
    return isinstance(inner, AGGREGATES) and not isinstance(inner, exp.Count | exp.CountIf)
