"""MATCH_RECOGNIZE as a node of the plan tree: what is computed before, inside and after the match.

Conditions and parts of them that read one row alone are columns of the rows below; `PREV` and
`NEXT` are the neighbours in the partition. What looks at other rows of the match is a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from projections.sql.operators.formulas import (
    Family,
    Field,
    Formula,
    FormulaOperation,
    Pick,
    Take,
    Taken,
    Value,
    family_of,
)
from projections.sql.operators.patterns import variables
from projections.sql.operators.resolving import Names
from projections.sql.operators.tree import (
    Call,
    Computed,
    Map,
    Match,
    Node,
    Ordering,
    Over,
    column,
    passed,
)
from projections.sql.rendering.certified import has_simple_type
from projections.sql.rendering.match_arguments import tried
from projections.sql.statements.match_clause import MatchClause, Named, check_variables
from projections.sql.statements.match_expressions import (
    INSIDE,
    NEIGHBOURS,
    SIGNS,
    TAKES,
    WHOLE,
    Classifier,
    asked_unless,
    is_neighbour,
    number_of,
)
from projections.sql.values.expressions import check, same_text, unwrapped
from projections.sql.words.durations import duration_of, in_us
from projections.sql.words.places import offset_of
from projections.sql.words.type_names import normal

_AT = "__at"


def matched(names: Names, clause: MatchClause, node: Node) -> Map:
    """Return partition and measures of each match in the rows of `node`, or of each of its rows.

    Beside a row of a match stand its own columns.
    """
    return _Reader(names=names, clause=clause).results(node)


@dataclass(slots=True, kw_only=True)
class _Reader:
    names: Names
    clause: MatchClause
    rows: dict[str, Computed] = field(default_factory=dict)
    arguments: list[Computed] = field(default_factory=list)
    neighbours: dict[str, Call] = field(default_factory=dict)
    failing: dict[str, str] = field(default_factory=dict)
    picks: dict[Taken, Pick] = field(default_factory=dict)
    known: frozenset[str] = frozenset()

    def results(self, node: Node) -> Map:
        self.known = frozenset(variables(self.clause.pattern))
        check_variables(self.names.script, self.clause, self.names.scope.sources[0].alias)
        partition = [self._partition(each) for each in self.clause.partition]
        time = self._time()
        conditions = tuple((each.name, self._truth(each)) for each in self.clause.defines)
        measures = [self._measure(each.name, each.expression) for each in self.clause.measures]
        if self.clause.each_row:
            measures += self._of_row(partition, measures)
        known = exp.Not(this=exp.Is(this=time.expression.copy(), expression=exp.Null()))
        node = Map(
            input=node, outputs=(*passed(node.columns), time, *self.arguments), where=(known,)
        )
        if self.neighbours:
            order = Ordering(column=_AT, descending=False, nulls_first=False)
            node = Over(
                input=node,
                partition=tuple(each.expression.name for each in partition),
                order=(order,),
                frame=None,
                calls=tuple(self.neighbours.values()),
            )
        at = Computed(name=_AT, expression=column(_AT), type=time.type)
        node = Match(
            input=Map(input=node, outputs=(*partition, at, *self.rows.values())),
            partition=tuple(each.name for each in partition),
            time=_AT,
            pattern=self.clause.pattern,
            conditions=conditions,
            within_us=None if self.clause.within is None else in_us(self.clause.within),
            skip=self.clause.skip,
            skip_to=self.clause.skip_to,
            each_row=self.clause.each_row,
            picks=tuple(self.picks.values()),
        )
        own = [Computed(name=p.name, expression=column(p.name), type=p.type) for p in partition]
        return Map(input=node, outputs=(*own, *measures))

    def _of_row(
        self, partition: Sequence[Computed], measures: Sequence[Computed]
    ) -> list[Computed]:
        """Return the columns of a row of a match that no measure has the name of."""
        (source,) = self.names.scope.sources
        named = {each.name.lower() for each in (*partition, *measures)}
        # What it is called may not be what it is stored as.
        return [
            self._measure(each.name if each.name.lower() == name else name, exp.column(name))
            for name, each in source.columns.items()
            if name not in named and has_simple_type(normal(each.type))
        ]

    def _partition(self, node: exp.Expr) -> Computed:
        if not isinstance(node, exp.Column):
            raise self.names.script.refusal(
                "rows are partitioned by columns",
                at=offset_of(node, self.clause.at),
                fix="Compute it in a subquery: FROM (SELECT …) x MATCH_RECOGNIZE (…).",
            )
        flat = self.names.flat(self.names.scope.resolve(node))
        return self.names.computed(str(node.name), flat)

    def _time(self) -> Computed:
        check(self.names.script, self.clause.order, at=self.clause.at, aggregates=False)
        flat = self.names.flat(self.names.scope.resolve(self.clause.order))
        made = self.names.computed(_AT, flat)
        if made.type != "TIMESTAMP":
            raise self.names.script.refusal(
                f"rows are matched in the order of a time, not of {made.type or 'another type'}",
                at=offset_of(self.clause.order, self.clause.at),
                fix="Write ORDER BY occurred_at, or another TIMESTAMP.",
            )
        self.names.knows(_AT, made.type)
        return made

    def _row(
        self, node: exp.Expr, own: str | None, unless: Sequence[exp.Expr] = ()
    ) -> tuple[str, str | None]:
        """Return the column that an expression over one row is; `own` is the row's variable.

        Beside it the one that says where it is an error, None where it never is. Where one of
        `unless` is true of the row, the expression is not asked.
        """
        at = offset_of(node, self.clause.at)
        flat = self._flat(asked_unless(node, unless), own)
        value, failed = tried(flat, self.names.type_of, self.failing)
        return self._kept(value, at), None if failed is None else self._kept(failed, at)

    def _flat(self, node: exp.Expr, own: str | None) -> exp.Expr:
        """Return an expression over one row as one over the columns of the rows below."""
        at = offset_of(node, self.clause.at)

        def alone(found: exp.Expr) -> exp.Expr:
            if isinstance(found, exp.Column) and found.table.upper() == own:
                made = exp.Column(this=found.this.copy())
                made.meta.update(found.meta)
                return made
            return found

        def inner(found: exp.Expr) -> exp.Expr:
            return exp.Paren(this=found.expressions[0]) if is_neighbour(found) else found

        plain = node.copy().transform(alone)
        check(self.names.script, plain.copy().transform(inner), at=at, aggregates=False)
        flat = self.names.flat(self.names.scope.resolve(plain))
        return flat.transform(lambda f: self._neighbour(f, at) if is_neighbour(f) else f)

    def _kept(self, flat: exp.Expr, at: int) -> str:
        """Return the column that an expression over one row is."""
        text = same_text(flat)
        if text not in self.rows:
            made = self.names.computed(f"__v{len(self.rows)}", flat)
            self._simple(made.type, at)
            self.rows[text] = made
            self.names.knows(made.name, made.type)
        return self.rows[text].name

    def _simple(self, kind: str, at: int) -> None:
        if not has_simple_type(kind):
            raise self.names.script.refusal(
                f"a pattern needs plain types, and this is {kind or 'of a type not known here'}",
                at=at,
                fix="Convert it: CAST(… AS STRING).",
            )

    def _neighbour(self, found: exp.Expr, at: int) -> exp.Expr:
        offset = found.expressions[1] if len(found.expressions) == 2 else exp.Literal.number(1)
        if len(found.expressions) > 2 or not offset.is_int or int(offset.name) < 1:
            raise self.names.script.refusal(
                f"{found.name.upper()} takes an expression and a number of rows",
                at=at,
                fix="Write PREV(x) or PREV(x, 2).",
            )
        value, failed = tried(found.expressions[0], self.names.type_of, {})
        name = self._beside(found, value, int(offset.name), at)
        if failed is not None:
            self.failing[name] = self._beside(found, failed, int(offset.name), at)
        return column(name)

    def _beside(self, found: exp.Expr, value: exp.Expr, offset: int, at: int) -> str:
        """Return the column that has a value of the row so many rows before or behind."""
        text = f"{found.name.upper()} {offset} {same_text(value)}"
        if text not in self.neighbours:
            argument = self.names.computed(f"__a{len(self.arguments)}", value)
            self._simple(argument.type, at)
            self.arguments.append(argument)
            self.neighbours[text] = Call(
                name=f"__o{len(self.neighbours)}",
                function=NEIGHBOURS[found.name.upper()],
                argument=argument.name,
                kind=argument.type,
                type=argument.type,
                offset=offset,
            )
            self.names.knows(self.neighbours[text].name, argument.type)
        return self.neighbours[text].name

    def _truth(self, define: Named) -> Formula:
        made = self._condition(define.expression, define.name)
        family = family_of(made, self._type)
        if family not in (Family.BOOLEAN, Family.NOTHING):
            raise self.names.script.refusal(
                f"the condition of {define.name} is {family}, neither true nor false",
                at=define.at,
                fix="Compare it: A AS A.delay > 0.",
            )
        return made

    def _refers(self, node: exp.Expr, own: str | None) -> bool:
        """Say whether an expression looks at other rows than the one of `own`."""
        return any(
            isinstance(found, exp.AggFunc)
            or (isinstance(found, exp.Column) and self._variable(found) not in (None, own))
            for found in node.walk()
        )

    def _variable(self, found: exp.Expr) -> str | None:
        name = str(found.table).upper() if isinstance(found, exp.Column) else ""
        return name if name in self.known else None

    def _condition(self, node: exp.Expr, own: str, unless: Sequence[exp.Expr] = ()) -> Formula:
        node = unwrapped(node)
        if isinstance(node, exp.Null):
            return Value(None)
        if isinstance(node, exp.Boolean):
            return Value(bool(node.this))
        if isinstance(node, exp.Literal):
            return Value(node.name if node.is_string else number_of(node.name))
        if isinstance(node, exp.Interval) and (length := duration_of(node)):
            return FormulaOperation("length", (Value(in_us(length)),))
        if not self._refers(node, own):
            return Field(*self._row(node, own, unless))
        if isinstance(node, (exp.Column, *TAKES)):
            return self._taken(node)
        return self._operation(node, own, unless)

    def _operation(self, node: exp.Expr, own: str, unless: Sequence[exp.Expr]) -> Formula:
        if isinstance(node, exp.Between):
            bounds = (node.this, node.args["low"], node.args["high"])
            value, *ends = (self._condition(part, own, unless) for part in bounds)
            sides = zip((">=", "<="), ends, strict=True)
            both = tuple(self._whole(node, sign, (value, end)) for sign, end in sides)
            return FormulaOperation("and", both)
        if isinstance(node, exp.Is) and isinstance(node.expression, exp.Null):
            return FormulaOperation("is null", (self._condition(node.this, own, unless),))
        sign = SIGNS.get(type(node))
        if sign is None:
            raise self.names.script.refusal(
                f"{type(node).__name__.upper()} is not computed over several rows of a match",
                at=offset_of(node, self.clause.at),
                fix=INSIDE,
            )
        parts = [node.this, *filter(None, [node.args.get("expression")])]
        if isinstance(node, exp.Coalesce):
            parts = [node.this, *node.expressions]
        read = []
        for part in parts:
            read.append(self._condition(part, own, unless))
            unless = (*unless, *self._deciding(node, unwrapped(part), own))
        return self._whole(node, sign, tuple(read))

    def _deciding(self, node: exp.Expr, part: exp.Expr, own: str) -> list[exp.Expr]:
        """Return what of one row alone, where it is true, decides `node` before its next part."""
        chained = isinstance(node, exp.Connector) and type(part) is type(node)
        chain = [*part.flatten()] if chained else [part]
        alone = [exp.Paren(this=each.copy()) for each in chain if not self._refers(each, own)]
        if isinstance(node, exp.Coalesce):
            return [exp.Not(this=exp.Is(this=each, expression=exp.Null())) for each in alone]
        if isinstance(node, exp.And):
            return [exp.Not(this=each) for each in alone]
        return [*alone] if isinstance(node, exp.Or) else []

    def _whole(self, node: exp.Expr, sign: str, parts: tuple[Formula, ...]) -> FormulaOperation:
        made = FormulaOperation(sign, parts)
        if family_of(made, self._type) is None:
            said = [family.value for part in parts if (family := family_of(part, self._type))]
            raise self.names.script.refusal(
                f"{sign.upper()} does not go with {' and '.join(said)}",
                at=offset_of(node, self.clause.at),
                fix="Convert one side by CAST; to a time add an INTERVAL.",
            )
        return made

    def _type(self, name: str) -> str:
        return self.names.type_of(column(name))

    def _taken(self, node: exp.Expr) -> Taken:
        """Read FIRST, LAST, an aggregate, or a variable's column, which is that of its last row."""
        at = offset_of(node, self.clause.at)
        whole = bool(node.meta.get(WHOLE))
        if isinstance(node, exp.Column):
            variable = self._variable(node)
            return Taken(Take.LAST, variable, *self._row(node, variable))
        if isinstance(node, Classifier):
            return Taken(Take.VARIABLE, None, None, whole=whole)
        inner = node.this
        used = {self._variable(found) for found in inner.find_all(exp.Column)} - {None}
        if isinstance(inner, exp.Distinct) or len(used) > 1 or self._nested(inner):
            raise self.names.script.refusal(
                "an aggregate in a pattern is over columns of one variable, without DISTINCT",
                at=at,
                fix="Aggregate each variable by itself.",
            )
        variable = next(iter(used), None)
        if isinstance(inner, exp.Star) or isinstance(getattr(inner, "this", None), exp.Star):
            return Taken(Take.COUNT, variable, None, whole=whole)
        value, failed = self._row(inner, variable)
        passed = self._passed(node, at)
        return Taken(TAKES[type(node)], variable, value, failed, passed=passed, whole=whole)

    def _passed(self, node: exp.Expr, at: int) -> int:
        """Return how many rows FIRST(x, n) and LAST(x, n) pass over."""
        passed = node.args.get("expression")
        if passed is None:
            return 0
        if not isinstance(passed, exp.Literal) or not passed.is_int:
            raise self.names.script.refusal(
                f"{node.key.upper()} takes an expression and a number of rows",
                at=at,
                fix="Write LAST(A.x), or LAST(A.x, 1) for the row of A before the last one.",
            )
        return int(passed.name)

    def _nested(self, inner: exp.Expr) -> bool:
        return any(isinstance(found, exp.AggFunc) for found in inner.walk())

    def _measure(self, name: str, node: exp.Expr) -> Computed:
        def replaced(found: exp.Expr) -> exp.Expr:
            if not isinstance(found, (exp.Column, *TAKES)):
                return found
            taken = self._taken(found)
            if taken not in self.picks:
                self.picks[taken] = self._pick(taken, offset_of(found, self.clause.at))
            return column(self.picks[taken].name)

        made = node.copy().transform(replaced)
        check(self.names.script, made, at=self.clause.at, aggregates=False)
        return self.names.computed(name, made)

    def _pick(self, taken: Taken, at: int) -> Pick:
        name = f"__m{len(self.picks)}"
        kind, made = "", "STRING" if taken.take is Take.VARIABLE else "BIGINT"
        if taken.column is not None:
            value = column(taken.column)
            kind = made = self.names.type_of(value)
            if taken.take in (Take.SUM, Take.AVG):
                made = self.names.type_of(
                    exp.Sum(this=value) if taken.take is Take.SUM else exp.Avg(this=value)
                )
            made = "BIGINT" if taken.take is Take.COUNT else made
        self._simple(made, at)
        self.names.knows(name, made)
        return Pick(name=name, taken=taken, kind=kind, type=made)
