"""RIGHT and FULL joins as what they are: a LEFT join from the other side, and two joins' rows.

A RIGHT join behind FROM is the LEFT join of its sides exchanged. A FULL join has the rows of a LEFT
join, and those of its right side that no row of the left one is joined with, by an anti join of
their own; a further RIGHT join has the rows of an INNER join and these.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from projections.sql.operators.tree import Computed, Map, Node, UnionAll, column, passed


def side_of(join: exp.Expr) -> str:
    """Return LEFT, RIGHT or FULL, or the empty text for neither."""
    return join.text("side").upper()


def shared_columns(joins: Iterable[exp.Expr]) -> frozenset[str]:
    """Return the columns in USING of RIGHT and FULL joins, in lower case."""
    return frozenset(
        name.name.lower()
        for join in joins
        if adds_rows(join)
        for name in join.args.get("using") or []
    )


def adds_rows(join: exp.Expr) -> bool:
    """Say whether a join has rows of its right side that meet none before."""
    return side_of(join) in ("RIGHT", "FULL")


def mirrored(select: exp.Select) -> exp.Select:
    """Write a RIGHT JOIN behind FROM as a LEFT JOIN of the sides exchanged."""
    joins = select.args.get("joins") or []
    if not joins or side_of(joins[0]) != "RIGHT":
        return select
    changed = select.copy()
    clause, join = changed.args["from_"], changed.args["joins"][0]
    first, second = clause.this, join.this
    clause.set("this", second.copy())
    join.set("this", first.copy())
    join.set("side", "LEFT")
    return changed


def full(matched: Node, alone: Node) -> UnionAll:
    """Return the rows of a FULL or RIGHT join from those that meet and the anti join beside.

    Columns that the joins made for themselves are left out.
    """
    columns = tuple(each for each in matched.columns if not each.name.startswith("__"))
    theirs = {each.name for each in alone.columns}
    outputs = tuple(
        Computed(
            name=each.name,
            expression=column(each.name) if each.name in theirs else null_of(each.type),
            type=each.type,
        )
        for each in columns
    )
    both = Map(input=matched, outputs=passed(columns)), Map(input=alone, outputs=outputs)
    return UnionAll(inputs=both)


def null_of(kind: str) -> exp.Expr:
    """Return NULL of a type, a bare one where the type is not known."""
    if not kind:
        return exp.Null()
    return exp.Cast(this=exp.Null(), to=exp.DataType.build(kind, dialect="spark"))
