"""VALUES as a joined input: rows that are written out, each met by a key of its own.

Where at most one of them is met by a row of the other side, its columns are choices, `CASE key WHEN
1 THEN 'a' WHEN 2 THEN 'b' END`. Otherwise each row is there once for each of them, as for elements
of an array, and those that meet are left. So the join needs no state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from sqlglot import exp

from projections.sql.forms.outer_joins import adds_rows, null_of, side_of
from projections.sql.operators.query import named_as, resolved
from projections.sql.operators.resolving import Names
from projections.sql.operators.scope import QuerySource
from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import Computed, Exploded, JoinKind, Map, Node, column, passed
from projections.sql.planning import joins
from projections.sql.values.expressions import check, unwrapped
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column, Relation
from projections.sql.words.decimals import FLOATING, common_type, digits_of
from projections.sql.words.places import Script, offset_of

_MOST_ROWS = 200
_FORM = (
    "Name rows and columns, and join them to others: FROM x JOIN (VALUES (1, 'a'), (2, 'b')) AS "
    "v(k, name) ON v.k = x.k; or keep the rows in a table that is captured."
)
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MET = "__met"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRows:
    """The rows of a VALUES, under its alias.

    `beside`: their values are computed of the row that they stand beside.
    """

    script: Script
    at: int
    source: QuerySource
    rows: tuple[tuple[exp.Expr, ...], ...]
    beside: bool = False

    def joined(self, names: Names, join: exp.Expr, left: Node) -> Map:
        """Join the rows so far with these; `names` has both."""
        kind = joins.kind_of(self.script, join, self.at)
        if adds_rows(join):
            raise self._refusal(
                f"{side_of(join)} JOIN with VALUES: a row that nothing meets has no time"
            )
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
            keys[number] = joins.guarded(pair[0], conditions[:place], ours)
        # Converted to a floating-point number, two values may become one.
        plain = all(names.type_of(key) not in ("", *FLOATING) for key in keys.values())
        if plain and not self.beside and self._tells_apart([*keys]):
            return self._met(left, kind, keys, rest)
        if kind in (JoinKind.SEMI, JoinKind.ANTI):
            met = self._some(conditions)
            alone = (met,) if kind is JoinKind.SEMI else (_none(met),)
            return Map(input=left, outputs=passed(left.columns), where=alone)
        return self._each(left, conditions, outer=kind is JoinKind.LEFT)

    def _each(self, left: Node, conditions: Sequence[exp.Expr], *, outer: bool) -> Map:
        """Write each row so far once for each of these that it meets.

        `outer`: beside them it has a place for none, at which it stays where it meets none.
        """
        rows, own = len(self.rows), passed(left.columns)
        if rows == 1 and not outer:
            outputs = (*own, *self._valued(lambda values: values[0]))
            named = Map(input=left, outputs=outputs)
            return Map(input=named, outputs=passed(named.columns), where=tuple(conditions))
        values, place = f"__{self.source.alias}.rows", f"{self.source.alias}.__place"
        numbers = exp.Array(expressions=[_number(each) for each in range(rows + outer)])
        numbered = Computed(name=values, expression=numbers, type="ARRAY<INT>")
        exploded = Exploded(
            input=Map(input=left, outputs=(*own, numbered)),
            values=values,
            entries=False,
            outer=False,
            kept=tuple(each.name for each in left.columns),
            place=place,
            first=0,
            elements=(),
        )
        outputs = (*own, *self._valued(lambda values: _at_place(place, values)))
        met: tuple[exp.Expr, ...] = tuple(conditions)
        if outer:
            none = exp.EQ(this=column(place), expression=_number(rows))
            holds = exp.and_(*(exp.Paren(this=each.copy()) for each in conditions))
            alone = _none(self._some(conditions))
            met = (exp.Case(ifs=[exp.If(this=none, true=alone)], default=holds),)
            outputs = (*outputs, *(each for each in passed(exploded.own) if each.name == place))
        named = Map(input=exploded, outputs=outputs)
        given = passed(tuple(each for each in named.columns if each.name != place))
        return Map(input=named, outputs=given, where=met)

    def _valued(self, value: Callable[[Sequence[exp.Expr]], exp.Expr]) -> tuple[Computed, ...]:
        """Return the columns, each made of its values in all rows."""
        return tuple(
            Computed(
                name=f"{self.source.alias}.{each.name}",
                expression=value([row[number] for row in self.rows]),
                type=each.type,
            )
            for number, each in enumerate(self.source.columns.values())
        )

    def _some(self, conditions: Sequence[exp.Expr]) -> exp.Expr:
        """Write that one of the rows meets all conditions."""
        names = [f"{self.source.alias}.{each.name}" for each in self.source.columns.values()]

        def met_by(row: Sequence[exp.Expr]) -> exp.Expr:
            known = dict(zip(names, row, strict=True))

            def replaced(found: exp.Expr) -> exp.Expr:
                value = known.get(found.name) if isinstance(found, exp.Column) else None
                return found if value is None else exp.Paren(this=value.copy())

            parts = [exp.Paren(this=each.copy().transform(replaced)) for each in conditions]
            return exp.Paren(this=exp.and_(*parts))

        return exp.or_(*map(met_by, self.rows)) if conditions else exp.true()

    def _met(
        self, left: Node, kind: JoinKind, keys: dict[int, exp.Expr], rest: list[exp.Expr]
    ) -> Map:
        own = tuple(
            Computed(
                name=f"{self.source.alias}.{each.name}",
                expression=self._choice(keys, [row[number] for row in self.rows], each.type),
                type=each.type,
            )
            for number, each in enumerate(self.source.columns.values())
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
                return Map(input=looked_up, outputs=ours, where=(_none(holds),))
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

    def _tells_apart(self, keys: list[int]) -> bool:
        """Say whether the columns that are equated tell each row from the others."""
        found: set[tuple[object, ...]] = set()
        types = [each.type for each in self.source.columns.values()]
        for row in self.rows:
            key = tuple(_known(row[number]) for number in keys)
            if any(_is_null(row[number]) for number in keys):
                continue
            unknown = None in key or any(types[number] in FLOATING for number in keys)
            if unknown or key in found:
                return False
            found.add(key)
        return bool(keys)

    def _refusal(self, message: str) -> Exception:
        return self.script.refusal(message, at=self.at, fix=_FORM)


def _none(holds: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Coalesce(this=holds, expressions=[exp.false()]))


def _number(value: int) -> exp.Expr:
    made: exp.Expr = exp.Literal.number(value)
    return made


def _at_place(place: str, values: Sequence[exp.Expr]) -> exp.Expr:
    ifs = [exp.If(this=_number(n), true=value.copy()) for n, value in enumerate(values)]
    return exp.Case(this=column(place), ifs=ifs)


def constant_rows(
    script: Script,
    values: exp.Values,
    *,
    index: int,
    at: int,
    before: Names | None = None,
) -> ConstantRows:
    """Read a VALUES; `before` are the inputs of which its values are computed, if it is of any.

    Raises `InvalidRequest` for what is no rows of values of one type each.
    """
    at = offset_of(values, at)
    alias = values.args.get("alias")
    rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in values.expressions]
    named = [each.name for each in (alias.args.get("columns") or [])] if alias else []
    names = named or [f"col{place}" for place in range(1, len(rows[0]) + 1)]
    if (
        not values.alias
        or not all(map(str.isidentifier if before is not None else named_as, names))
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
    typed = [
        _typed(script, name, each, at, before)
        for name, each in zip(names, zip(*rows, strict=True), strict=True)
    ]
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
    return ConstantRows(
        script=script, at=at, source=source, rows=rows_of, beside=before is not None
    )


def _typed(
    script: Script, name: str, values: Sequence[exp.Expr], at: int, before: Names | None
) -> tuple[str, list[exp.Expr]]:
    """Return the type of a column of VALUES, and its values as such."""
    for each in values:
        check(script, each, at=at, aggregates=False)
        if before is None and each.find(exp.Column):
            raise script.refusal(
                "VALUES reads a column",
                at=offset_of(each, at),
                fix="Write the values out, or LATERAL (VALUES (x.a), (x.b)) AS v(value) behind x.",
            )
    if before is not None:
        values = [before.flat(resolved(before.scope, each)) for each in values]
    kinds = [_type(each, before) for each in values]
    if len({*kinds} - {"NULL"}) == 1 == len(values):
        # One value needs no type that is known.
        return kinds[0], [*values]
    kind = common_type([found for found in kinds if found != "NULL"])
    if not kind:
        told = ", ".join(found or "what only Spark derives" for found in dict.fromkeys(kinds))
        raise script.refusal(
            f"the values of {name} have no one type: {told}",
            at=offset_of(values[-1], at),
            fix="Write values of one type, CAST(… AS …) where they differ, and one that is not "
            "NULL.",
        )
    made = [
        null_of(kind) if found == "NULL" else each if found == kind else _cast(each, kind)
        for found, each in zip(kinds, values, strict=True)
    ]
    return kind, made


def _type(value: exp.Expr, before: Names | None) -> str:
    if isinstance(unwrapped(value), exp.Null):
        return "NULL"
    return type_of(value, lambda _: "") if before is None else before.type_of(value)


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
