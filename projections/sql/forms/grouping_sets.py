"""GROUPING SETS, ROLLUP and CUBE: one query for each set of groups, and their rows together.

In the rows of a set the expressions that are grouped by in other sets alone are NULL, and
`GROUPING(x)` says of such a row 1, of one that is grouped by x 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product
from typing import Protocol

from sqlglot import exp

from projections.sql.forms.outer_joins import null_of
from projections.sql.operators.windows import is_session, window_kind
from projections.sql.values.expressions import AGGREGATES, render
from projections.sql.words.aggregate_forms import grouping_number
from projections.sql.words.places import Script, offset_of

_MOST_SETS = 16
_WORDS = (exp.GroupingSets, exp.Rollup, exp.Cube)
_Set = tuple[exp.Expr, ...]


def has_sets(select: exp.Expr) -> bool:
    """Say whether a SELECT groups by several sets of expressions."""
    clause = select.args.get("group")
    if clause is None:
        return False
    return any(isinstance(each, _WORDS) for each in clause.expressions) or any(
        clause.args.get(each) for each in ("grouping_sets", "rollup", "cube")
    )


class GroupingMeanings(Protocol):
    """What expressions of one SELECT are over its inputs."""

    def text(self, node: exp.Expr) -> str:
        """Return a text by which expressions are compared: equal ones have the same."""
        ...

    def group(self, node: exp.Expr) -> tuple[str, str]:
        """Return such a text of what is grouped by, and its type; empty where it is not known."""
        ...


def queries_of_sets(
    script: Script, select: exp.Select, at: int, meanings: GroupingMeanings
) -> list[exp.Select]:
    """Return a SELECT for each set, with NULL of the expression's type where it does not group."""
    fixed, sets = _sets(script, select.args["group"], at)
    _refuse_several(script, select, at)
    listed = [each for each in select.args["group"].expressions if not isinstance(each, _WORDS)]
    select = _with_numbers(select, (*listed, *_flat(sets)), meanings)
    groups = [[(each, *meanings.group(each)) for each in found] for found in sets]
    nulls = {text: null_of(kind) for found in groups for _, text, kind in found}
    if not fixed:
        # What is listed before GROUPING SETS, and stands in none of them, is in no group.
        nulls |= {text: null_of(kind) for text, kind in map(meanings.group, listed)}
    queries = []
    for found, named in zip(sets, groups, strict=True):
        own = {text for _, text, _ in named}
        made = select.copy()
        by: list[exp.Expr] = [each.copy() for each in (*fixed, *found)]
        made.set("group", exp.Group(expressions=by or [exp.Literal.string("all")]))
        absent = {text: null for text, null in nulls.items() if text not in own}
        items = [_named(_of_set(each, absent, meanings), each) for each in select.expressions]
        made.set("expressions", items)
        having = select.args.get("having")
        if having is not None:
            made.set("having", exp.Having(this=_of_set(having.this, absent, meanings)))
        queries.append(made)
    return queries


def groups_in(script: Script, select: exp.Select, at: int) -> _Set:
    """Return what a SELECT groups by, in any of its sets."""
    clause = select.args["group"]
    if not has_sets(select):
        return tuple(clause.expressions)
    fixed, sets = _sets(script, clause, at)
    return (*fixed, *_flat(sets))


def _sets(script: Script, clause: exp.Expr, at: int) -> tuple[_Set, list[_Set]]:
    """Return what every set has, and the sets of ROLLUP, CUBE and GROUPING SETS.

    Of several of these each set of one goes with each set of the others.
    """
    place = offset_of(clause, at)
    fixed: list[exp.Expr] = []
    found: list[exp.Expr] = []
    for each in clause.expressions:
        (found if isinstance(each, _WORDS) else fixed).append(each)
    behind = [
        e for word in ("grouping_sets", "rollup", "cube") for e in clause.args.get(word) or []
    ]
    for each in behind:
        if not each.expressions:
            # GROUP BY a, b WITH ROLLUP
            each = type(each)(expressions=[one.copy() for one in fixed])
        # GROUP BY a, b GROUPING SETS ((a), (b)): without a comma what is before them is a list of
        # what stands in the sets.
        fixed = []
        found.append(each)
    sets = [_flat(chosen) for chosen in product(*map(_sets_of, found))]
    if len(sets) > _MOST_SETS:
        raise script.refusal(
            f"{len(sets)} sets of groups: each is kept by itself",
            at=place,
            fix=f"Name those that are read, {_MOST_SETS} at most: GROUPING SETS ((a, b), (a), ()).",
        )
    return tuple(fixed), sets


def _sets_of(one: exp.Expr) -> list[_Set]:
    """Return the sets of a ROLLUP, CUBE or GROUPING SETS; of what stands in it, too."""
    if isinstance(one, exp.GroupingSets):
        return [
            found
            for each in one.expressions
            for found in (_sets_of(each) if isinstance(each, _WORDS) else [_members(each)])
        ]
    parts = tuple(map(_members, one.expressions))
    sizes = range(len(parts), -1, -1)
    if isinstance(one, exp.Rollup):
        return [_flat(parts[:count]) for count in sizes]
    return [_flat(chosen) for size in sizes for chosen in combinations(parts, size)]


def _with_numbers(
    select: exp.Select, groups: Sequence[exp.Expr], meanings: GroupingMeanings
) -> exp.Select:
    """Write GROUPING_ID() as that of all that is grouped by, in the order in which it stands."""
    numbers = [each for each in select.find_all(exp.GroupingId) if not each.expressions]
    if not numbers:
        return select
    told: dict[str, exp.Expr] = {}
    for each in groups:
        if window_kind(each) is not None or is_session(each):
            continue
        told.setdefault(meanings.group(each)[0], each)
    changed = select.copy()
    for found in [*changed.find_all(exp.GroupingId)]:
        if not found.expressions and found.find_ancestor(exp.Select) is changed:
            found.replace(grouping_number([*told.values()]))
    return changed


def _refuse_several(script: Script, select: exp.Select, at: int) -> None:
    for part in (*select.expressions, *filter(None, [select.args.get("having")])):
        for found in part.find_all(exp.Grouping):
            count = len(found.expressions)
            if count == 1:
                continue
            # Its bits are in the order of its arguments, the last one's is 1.
            bits = [
                f"GROUPING({render(each)})" + (f" * {2**place}" if place else "")
                for place, each in zip(range(count - 1, -1, -1), found.expressions, strict=True)
            ]
            raise script.refusal(
                f"GROUPING of {count} expressions is not compiled",
                at=offset_of(found, at),
                fix=f"Ask of one at a time: {' + '.join(bits) or 'GROUPING(a)'}.",
            )


def _members(node: exp.Expr) -> _Set:
    if isinstance(node, exp.Tuple):
        return tuple(node.expressions)
    return (node.this,) if isinstance(node, exp.Paren) else (node,)


def _flat(parts: Sequence[_Set]) -> _Set:
    return tuple(each for part in parts for each in part)


def _of_set(node: exp.Expr, absent: dict[str, exp.Expr], meanings: GroupingMeanings) -> exp.Expr:
    """Return an expression as it is in a set that does not group by what is absent."""

    def replaced(found: exp.Expr) -> exp.Expr:
        if isinstance(found, exp.Grouping):
            bit = 1 if meanings.text(found.expressions[0]) in absent else 0
            return exp.cast(exp.Literal.number(bit), "TINYINT", dialect="spark")
        # A condition in FILTER is asked of each row, as the argument beside it is.
        of_rows = (exp.Filter, *AGGREGATES)
        inside = isinstance(found, of_rows) or found.find_ancestor(*of_rows) is not None
        null = None if inside else absent.get(meanings.text(found))
        return found if null is None else null.copy()

    return node.copy().transform(replaced)


def _named(made: exp.Expr, written: exp.Expr) -> exp.Expr:
    """Give a result the name that it has where it is a plain column."""
    if isinstance(written, exp.Column) and not isinstance(made, exp.Column):
        return exp.alias_(made, written.name)
    return made
