"""VALUES as a joined input: rows that are written out, each met by a key of its own.

At most one of them is met by a row of the other side, so that the join needs no state: its columns
are choices, `CASE key WHEN 1 THEN 'a' WHEN 2 THEN 'b' END`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from projections.sql import joins
from projections.sql.catalog import Column, Relation
from projections.sql.decimals import FLOATING, common_type, digits_of
from projections.sql.expressions import check, unwrapped
from projections.sql.outer_joins import null_of, side_of
from projections.sql.places import Script, offset_of
from projections.sql.query import named_as
from projections.sql.resolving import Names
from projections.sql.scope import QuerySource
from projections.sql.shape import InputKind
from projections.sql.tree import Computed, JoinKind, Map, Node, column, passed
from projections.sql.types import type_of

_MOST_ROWS = 200
_FORM = (
    "Give each row a key of its own, and equate that: FROM x JOIN (VALUES (1, 'a'), (2, 'b')) AS "
    "v(k, name) ON v.k = x.k; or keep the rows in a table that is captured."
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_KINDS = "the key of VALUES is a whole number, a decimal, a text or a day, written out"
_MET = "__met"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRows:
    """The rows of a VALUES, under its alias."""

    script: Script
    at: int
    source: QuerySource
    rows: tuple[tuple[exp.Expr, ...], ...]

    def joined(self, names: Names, join: exp.Expr, left: Node) -> Map:
        """Join the rows so far with these; `names` has both.

        Raises `InvalidRequest` where a row may be met by several of them.
        """
        kind = joins.kind_of(self.script, join, self.at)
        if side_of(join) == "FULL":
            raise self._refusal("FULL JOIN with VALUES: a row that nothing meets has no time")
        ours = {each.name for each in left.columns}
        own = [f"{self.source.alias}.{each.name}" for each in self.source.columns.values()]
        keys: dict[int, exp.Expr] = {}
        rest: list[exp.Expr] = []
        conditions = joins.conditions_of(names, join, self.source, self.at)
        for place, part in enumerate(conditions):
            pair = joins.pair_of(part, ours, {*own})
            number = own.index(pair[1].name) if pair and isinstance(pair[1], exp.Column) else -1
            if pair is None or number < 0 or number in keys:
                rest.append(part)
                continue
            joins.check_types(names, pair, part, self.at)
            if names.type_of(pair[0]) in ("", *FLOATING):
                # Converted, two values may become one.
                raise self._refusal(_KINDS)
            keys[number] = joins.guarded(pair[0], conditions[:place], ours)
        self._refuse_several([*keys])
        return self._met(left, kind, keys, rest)

    def _met(
        self, left: Node, kind: JoinKind, keys: dict[int, exp.Expr], rest: list[exp.Expr]
    ) -> Map:
        given = self.source.columns.values()
        own = tuple(
            Computed(
                name=f"{self.source.alias}.{each.name}",
                expression=self._choice(keys, [row[number] for row in self.rows], each.type),
                type=each.type,
            )
            for number, each in enumerate(given)
        )
        met = Computed(
            name=_MET,
            expression=self._choice(keys, [exp.true()] * len(self.rows), "BOOLEAN"),
            type="BOOLEAN",
        )
        looked_up = Map(input=left, outputs=(*passed(left.columns), *own, met))
        ours, theirs = passed(left.columns), passed(looked_up.columns[len(left.columns) : -1])
        holds = column(_MET)
        for part in rest:
            holds = joins.asked_after([holds], part, otherwise=exp.false())
        match kind:
            case JoinKind.INNER:
                where = (column(_MET), *rest)
                return Map(input=looked_up, outputs=(*ours, *theirs), where=where)
            case JoinKind.SEMI:
                return Map(input=looked_up, outputs=ours, where=(column(_MET), *rest))
            case JoinKind.ANTI:
                none = exp.Not(this=exp.Coalesce(this=holds, expressions=[exp.false()]))
                return Map(input=looked_up, outputs=ours, where=(none,))
            case JoinKind.LEFT:
                kept = tuple(
                    Computed(
                        name=each.name,
                        expression=joins.asked_after([holds], each.expression)
                        if rest
                        else each.expression,
                        type=each.type,
                    )
                    for each in theirs
                )
                return Map(input=looked_up, outputs=(*ours, *kept))

    def _choice(self, keys: dict[int, exp.Expr], values: Sequence[exp.Expr], kind: str) -> exp.Expr:
        """Write the value of the row whose keys are met, NULL for none."""
        ifs: list[exp.Expr] = []
        alone = len(keys) == 1
        for row, value in zip(self.rows, values, strict=True):
            equal = [exp.EQ(this=key.copy(), expression=row[n].copy()) for n, key in keys.items()]
            known = not any(_is_null(row[n]) for n in keys)
            this = equal[0].expression if alone else exp.and_(*equal)
            ifs += [exp.If(this=this, true=value.copy())] if known else []
        if not ifs:
            return null_of(kind)
        (first, *_) = keys.values()
        return exp.Case(this=first.copy() if alone else None, ifs=ifs)

    def _refuse_several(self, keys: list[int]) -> None:
        """Refuse rows of which not each is told by the columns that are equated."""
        if not keys:
            raise self._refusal("the join with VALUES equates none of its columns")
        found: set[tuple[object, ...]] = set()
        types = [each.type for each in self.source.columns.values()]
        for row in self.rows:
            key = tuple(_known(row[number]) for number in keys)
            if any(_is_null(row[number]) for number in keys):
                continue
            if None in key or any(types[number] in FLOATING for number in keys):
                raise self._refusal(_KINDS)
            if key in found:
                raise self._refusal("two rows of VALUES are met by the same row of the other side")
            found.add(key)

    def _refusal(self, message: str) -> Exception:
        return self.script.refusal(message, at=self.at, fix=_FORM)


def constant_rows(script: Script, values: exp.Values, *, index: int, at: int) -> ConstantRows:
    """Read a VALUES. Raises `InvalidRequest` for what is no rows of values of one type each."""
    at = offset_of(values, at)
    alias = values.args.get("alias")
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    named = [each.name for each in (alias.args.get("columns") or [])] if alias else []
    names = named or [f"col{place}" for place in range(1, len(rows[0]) + 1)]
    if (
        not values.alias
        or not all(map(named_as, names))
        or len({*map(str.lower, names)}) < len(names)
    ):
        raise script.refusal("VALUES without names", at=at, fix=_FORM)
    if any(len(row) != len(names) for row in rows):
        raise script.refusal(
            "the rows of VALUES have other numbers of values than it names columns",
            at=at,
            fix="Give each row a value for each column: (VALUES (1, 'a'), (2, 'b')) AS v(k, name).",
        )
    if len(rows) > _MOST_ROWS:
        raise script.refusal(
            f"VALUES has {len(rows)} rows; {_MOST_ROWS} are the most",
            at=at,
            fix="Keep the rows in a table that is captured, and join that.",
        )
    typed = [_typed(script, each, at) for each in zip(*rows, strict=True)]
    columns = tuple(
        Column(name=name, type=kind) for name, (kind, _) in zip(names, typed, strict=True)
    )
    relation = Relation(name=str(values.alias), columns=columns, key=(), event_time=None)
    source = QuerySource(
        alias=str(values.alias),
        index=index,
        kind=InputKind.LATEST,
        relation=relation,
        columns={each.name.lower(): each for each in columns},
    )
    rows_of = tuple(zip(*(found for _, found in typed), strict=True))
    return ConstantRows(script=script, at=at, source=source, rows=rows_of)


def _typed(script: Script, values: Sequence[exp.Expr], at: int) -> tuple[str, list[exp.Expr]]:
    """Return the type of a column of VALUES, and its values as such."""
    for each in values:
        check(script, each, at=at, aggregates=False)
        if each.find(exp.Column):
            raise script.refusal(
                "VALUES reads a column", at=offset_of(each, at), fix="Write the values out."
            )
    kinds = [_type(each) for each in values]
    kind = common_type([found for found in kinds if found != "NULL"])
    if not kind:
        raise script.refusal(
            "a column of VALUES has no one type",
            at=at,
            fix="Write values of one type, CAST(… AS …) where they differ, and one that is not "
            "NULL.",
        )
    made = [
        null_of(kind) if found == "NULL" else each if found == kind else _cast(each, kind)
        for found, each in zip(kinds, values, strict=True)
    ]
    return kind, made


def _type(value: exp.Expr) -> str:
    if isinstance(unwrapped(value), exp.Null):
        return "NULL"
    return type_of(value, lambda _: "")


def _cast(value: exp.Expr, kind: str) -> exp.Expr:
    made: exp.Expr = exp.Cast(this=value.copy(), to=exp.DataType.build(kind, dialect="spark"))
    return made


def _is_null(value: exp.Expr) -> bool:
    return isinstance(value, exp.Cast) and isinstance(value.this, exp.Null)


def _known(value: exp.Expr) -> object:
    """Return a value that is equal for equal ones; None where that cannot be said."""
    value = unwrapped(value)
    match value:
        case exp.Neg():
            inner = _known(value.this)
            return -inner if isinstance(inner, Decimal) else None
        case exp.Literal() if value.is_string:
            return str(value.name)
        case exp.Literal():
            return Decimal(value.name)
        case exp.Boolean():
            return bool(value.this)
        case exp.Cast():
            return _known_as(_known(value.this), type_of(value, lambda _: ""))
        case _:
            return None


def _known_as(value: object, kind: str) -> object:
    """Return a value that is known as one of another type, if that leaves it as it is."""
    if isinstance(value, str):
        return value if kind == "STRING" or (kind == "DATE" and _DAY.fullmatch(value)) else None
    size = digits_of(kind)
    if not isinstance(value, Decimal) or size is None:
        return None
    return value if value == round(value, size[1]) else None
