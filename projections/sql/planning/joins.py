"""JOIN in a query of several steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from projections.sql.forms.correlations import is_of_values
from projections.sql.forms.outer_joins import adds_rows, side_of
from projections.sql.forms.scalar_subqueries import is_of_one_row
from projections.sql.operators.query import resolved
from projections.sql.operators.resolving import Names, used
from projections.sql.operators.scope import QuerySource
from projections.sql.operators.shape import InputKind
from projections.sql.operators.tree import Join, JoinKind, Map, Node, column, passed
from projections.sql.values.expressions import check, conjuncts, never_fails, unwrapped
from projections.sql.values.types import TEMPORAL
from projections.sql.words.decimals import FLOATING, INTEGERS
from projections.sql.words.places import Script, offset_of

_KINDS = {
    ("", ""): JoinKind.INNER,
    ("", "INNER"): JoinKind.INNER,
    ("LEFT", ""): JoinKind.LEFT,
    ("LEFT", "OUTER"): JoinKind.LEFT,
    ("RIGHT", ""): JoinKind.INNER,
    ("RIGHT", "OUTER"): JoinKind.INNER,
    ("FULL", ""): JoinKind.LEFT,
    ("FULL", "OUTER"): JoinKind.LEFT,
    ("LEFT", "SEMI"): JoinKind.SEMI,
    ("", "SEMI"): JoinKind.SEMI,
    ("LEFT", "ANTI"): JoinKind.ANTI,
    ("", "ANTI"): JoinKind.ANTI,
}
_PAIRED = re.compile(r"__[lr](\d+)")
"""Columns that joins make of what they equate: no two joins of a query make the same."""
_FORM = "Write [LEFT | RIGHT | FULL | LEFT SEMI | LEFT ANTI] JOIN x ON x.key = expression AND …."


def gives_columns(join: exp.Expr) -> bool:
    """Say whether the columns of a joined input can be read outside ON."""
    return join.text("kind").upper() not in ("SEMI", "ANTI")


def joined(names: Names, join: exp.Expr, left: Node, right: Node, source: QuerySource) -> Join:
    """Join the rows so far with those of one more input, the last of `names`.

    Of a FULL or RIGHT join it is the part with the left side's rows; see `unmatched`.
    """
    at = offset_of(join.this, names.at)
    if is_of_one_row(join):
        one = (exp.Literal.number(1), exp.Literal.number(1))
        kind = _KINDS[join.text("side").upper(), join.text("kind").upper()]
        return _paired(names, [one], [], [], left, right, kind)
    kind = kind_of(names.script, join, at)
    as_of = _as_of(names, join.this, source, at) if source.kind is InputKind.HISTORY else []
    if as_of and adds_rows(join):
        raise names.script.refusal(
            f"{side_of(join)} JOIN of a table as of a time: a version that nothing looks up has "
            "no time",
            at=at,
            fix="Write LEFT JOIN, or join the table as it is: FULL JOIN x ON x.key = ….",
        )
    # A version is looked up before it is asked what it has: another one may not have it.
    conditions = (*as_of, *conditions_of(names, join, source, at))
    made = _with_conditions(names, conditions, left, right, kind, at, as_of=bool(as_of))
    return replace(
        made,
        timed=source.kind is InputKind.STREAM and not is_of_values(join),
        as_of=tuple(each for each in as_of if any(each is part for part in made.rest)),
    )


def unmatched(
    names: Names, join: exp.Expr, left: Node, right: Node, source: QuerySource, *, timed: bool
) -> Join:
    """Return the rows of a join's right side that no row of the left one is joined with.

    `timed`: there are facts among the rows of the left side.
    """
    at = offset_of(join.this, names.at)
    conditions = conditions_of(names, join, source, at)
    made = _with_conditions(names, conditions, right, left, JoinKind.ANTI, at)
    return replace(made, timed=timed)


def _with_conditions(
    names: Names,
    conditions: Sequence[exp.Expr],
    left: Node,
    right: Node,
    kind: JoinKind,
    at: int,
    *,
    as_of: bool = False,
) -> Join:
    ours = {each.name for each in left.columns}
    theirs = {each.name for each in right.columns}
    conditions = [one for part in conditions for one in _equations(names, part, ours, theirs)]
    pairs, rest, right_only = [], [], []
    for place, part in enumerate(conditions):
        before, pair = conditions[:place], pair_of(part, ours, theirs)
        read = used(part)
        alone = next((side for side in (ours, theirs) if read and read <= side), None)
        if pair is not None:
            # Of a version's key the other side is to be converted, which is told by the first type.
            check_types(names, pair[::-1] if as_of else pair, part, at)
            pairs.append((guarded(pair[0], before, ours), guarded(pair[1], before, theirs)))
        elif alone is not None and not never_fails(part) and not _all_of(before, alone):
            # It would be asked of all rows of its side, were it not for what stands before it.
            rest.append(asked_after(before, part, otherwise=exp.false()))
        elif alone is theirs:
            right_only.append(part)
        else:
            rest.append(part)
    if not pairs and as_of:
        raise names.script.refusal(
            "the join equates nothing: a version is of a key", at=at, fix=_FORM
        )
    every = not pairs
    if every:
        # Each row is compared with all of the other side: one number is equal to itself.
        pairs.append((exp.Literal.number(1), exp.Literal.number(1)))
    made = _paired(names, pairs, rest, right_only, left, right, kind)
    return replace(made, every=every)


def guarded(side: exp.Expr, before: Sequence[exp.Expr], columns: set[str]) -> exp.Expr:
    """Return a side of a pair, NULL where a condition before it on the same columns fails."""
    own = [each for each in before if _all_of([each], columns)]
    return side if never_fails(side) or not own else asked_after(own, side)


def asked_after(
    before: Sequence[exp.Expr], asked: exp.Expr, otherwise: exp.Expr | None = None
) -> exp.Expr:
    """Return an expression that is asked where all conditions before it hold.

    It may be an error elsewhere, and engines compute columns, and filter, before they join.
    """
    holds = exp.and_(*(exp.Paren(this=each.copy()) for each in before))
    return exp.Case(ifs=[exp.If(this=holds, true=asked.copy())], default=otherwise)


def _all_of(conditions: Sequence[exp.Expr], columns: set[str]) -> bool:
    return all(used(each) and used(each) <= columns for each in conditions)


def _paired(
    names: Names,
    pairs: Sequence[tuple[exp.Expr, exp.Expr]],
    rest: Sequence[exp.Expr],
    right_only: Sequence[exp.Expr],
    left: Node,
    right: Node,
    kind: JoinKind,
) -> Join:
    both = (*left.columns, *right.columns)
    number = 1 + max((int(n[1]) for c in both if (n := _PAIRED.fullmatch(c.name))), default=-1)
    lefts = [names.computed(f"__l{number + i}", ours) for i, (ours, _) in enumerate(pairs)]
    rights = [names.computed(f"__r{number + i}", theirs) for i, (_, theirs) in enumerate(pairs)]
    return Join(
        left=Map(input=left, outputs=(*passed(left.columns), *lefts)),
        right=Map(input=right, outputs=(*passed(right.columns), *rights), where=tuple(right_only)),
        kind=kind,
        pairs=tuple((a.name, b.name) for a, b in zip(lefts, rights, strict=True)),
        rest=tuple(rest),
        timed=False,
    )


def kind_of(script: Script, join: exp.Expr, at: int) -> JoinKind:
    """Return what a join gives. Raises `InvalidRequest` for one that is not compiled."""
    side, word = join.text("side").upper(), join.text("kind").upper()
    known = ("this", "side", "kind", "on", "using", "pivots")
    unknown = [clause for clause, content in join.args.items() if content and clause not in known]
    if (side, word) == ("", "CROSS") and not unknown:
        return JoinKind.INNER
    kind = _KINDS.get((side, word))
    if unknown or kind is None:
        words = " ".join(
            filter(None, [*((join.text(each) or each).upper() for each in unknown), side, word])
        )
        raise script.refusal(f"{words} JOIN is not compiled yet", at=at, fix=_FORM)
    if not join.args.get("on") and not join.args.get("using"):
        raise script.refusal(
            "a JOIN without ON", at=at, fix=f"{_FORM} Each row with each other is CROSS JOIN x."
        )
    return kind


def conditions_of(names: Names, join: exp.Expr, source: QuerySource, at: int) -> list[exp.Expr]:
    """Return the conditions of a join, over the columns of the tree."""
    written = list(conjuncts(join.args.get("on")))
    for name in join.args.get("using") or []:
        if name.name.lower() in names.scope.shared:
            raise names.script.refusal(
                f"USING ({name.name}) behind a FULL JOIN by it: either side may lack it",
                at=at,
                fix=f"Say both: ON COALESCE(a.{name.name}, b.{name.name}) = c.{name.name}.",
            )
        sides = (source, _other_side(names, name.name, at))
        one, other = (exp.column(name.name, table=each.alias) for each in sides)
        written.append(exp.EQ(this=one, expression=other))
    return [names.flat(resolved(names.scope, part)) for part in written]


def _other_side(names: Names, name: str, at: int) -> QuerySource:
    """Return the one input before the last that has a column in USING."""
    *before, source = names.scope.sources
    having = [each for each in names.scope.having(name.lower()) if each is not source]
    if len(having) > 1:
        raise names.script.refusal(
            f"USING ({name}): {name} is a column of {' and of '.join(s.alias for s in having)}",
            at=at,
            fix=f"Say which one: ON {source.alias}.{name} = {having[0].alias}.{name}.",
        )
    return having[0] if having else before[0]


def _as_of(names: Names, table: exp.Expr, source: QuerySource, at: int) -> list[exp.Expr]:
    """Join the version with valid_from <= t < valid_to, never a later one."""
    written = table.args["version"].expression
    check(names.script, written, at=offset_of(written, at), aggregates=False)
    time = names.flat(names.scope.resolve(written))
    kind = names.type_of(time)
    if kind and kind not in TEMPORAL:
        raise names.script.refusal(
            f"AS OF is {kind}, not a time",
            at=offset_of(written, at),
            fix="Convert it: timestamp_millis(x) or CAST(x AS TIMESTAMP).",
        )
    begins, ends = (column(f"{source.alias}.{name}") for name in ("valid_from", "valid_to"))
    if used(time) & {begins.name, ends.name}:
        raise names.script.refusal(
            "AS OF must be a time of the row that looks the version up",
            at=offset_of(written, at),
            fix="Write FOR SYSTEM_TIME AS OF a time of an input before it.",
        )
    holds = exp.Or(
        this=exp.Is(this=ends, expression=exp.Null()),
        expression=exp.LT(this=time.copy(), expression=ends.copy()),
    )
    return [exp.LTE(this=begins, expression=time), exp.Paren(this=holds)]


def pair_of(part: exp.Expr, ours: set[str], theirs: set[str]) -> tuple[exp.Expr, exp.Expr] | None:
    """Return what a condition equates, of the left side and of the right one; None for neither."""
    if not isinstance(part, exp.EQ):
        return None
    one, other = unwrapped(part.this), unwrapped(part.expression)
    for left, right in ((one, other), (other, one)):
        if used(left) and used(right) and used(left) <= ours and used(right) <= theirs:
            return left, right
    return None


def _equations(
    names: Names, part: exp.Expr, ours: set[str], theirs: set[str]
) -> Sequence[exp.Expr]:
    """Write `a <=> b` of both sides as two equations, by which the rows of a pair are found.

    Both are NULL or neither is, and they are equal where they are not NULL.
    """
    inner = unwrapped(part)
    if not isinstance(inner, exp.NullSafeEQ):
        return [part]
    sides = [unwrapped(inner.this), unwrapped(inner.expression)]
    across = pair_of(exp.EQ(this=sides[0].copy(), expression=sides[1].copy()), ours, theirs)
    kinds = {names.type_of(side) for side in sides}
    if across is None or len(kinds) != 1 or (known := _some_value(*kinds)) is None:
        return [part]
    null, value = (
        [
            exp.Paren(this=exp.Is(this=exp.Paren(this=side.copy()), expression=exp.Null()))
            for side in sides
        ],
        [exp.Coalesce(this=side.copy(), expressions=[known.copy()]) for side in sides],
    )
    return [exp.EQ(this=each[0], expression=each[1]) for each in (null, value)]


def _some_value(kind: str) -> exp.Expr | None:
    """Return a value of a type; None for one of which none is known here."""
    match kind:
        case "STRING":
            return exp.Literal.string("")
        case "BOOLEAN":
            return exp.false()
        case "DATE" | "TIMESTAMP":
            text: exp.Expr = exp.Literal.string("1970-01-01")
        case _ if _family(kind) == "number":
            text = exp.Literal.number(0)
        case _:
            return None
    return exp.Cast(this=text, to=exp.DataType.build(kind, dialect="spark"))


def check_types(names: Names, pair: tuple[exp.Expr, exp.Expr], part: exp.Expr, at: int) -> None:
    """Refuse a comparison of two types that would convert one of them."""
    check_families(names.script, [names.type_of(side) for side in pair], part, at)


def check_families(script: Script, kinds: Sequence[str], part: exp.Expr, at: int) -> None:
    """Refuse a comparison of values of two types that would convert one of them."""
    families = [_family(kind) for kind in kinds]
    if all(families) and families[0] != families[1]:
        raise script.refusal(
            f"the join compares {kinds[0]} with {kinds[1]}",
            at=offset_of(part, at),
            fix=f"Convert one side: CAST(… AS {kinds[0]}).",
        )


def _family(kind: str) -> str:
    if kind in INTEGERS or kind in FLOATING or kind.startswith("DECIMAL"):
        return "number"
    return "time" if kind in TEMPORAL else kind
