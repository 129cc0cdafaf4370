"""RIGHT and FULL joins as what they are: a LEFT join from the other side, and two joins' rows.

A RIGHT join is the LEFT join of its sides exchanged. A FULL join has the rows of a LEFT join, and
those of its right side that no row of the left one is joined with, by an anti join of their own.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlglot import exp

from projections.sql.places import Script, offset_of
from projections.sql.tree import Computed, Map, Node, UnionAll, column, passed


def side_of(join: exp.Expr) -> str:
    """Return LEFT, RIGHT or FULL, or the empty text for neither."""
    return join.text("side").upper()


def shared_columns(joins: Iterable[exp.Expr]) -> frozenset[str]:
    """Return the columns in USING of RIGHT and FULL joins, in lower case."""
    return frozenset(
        name.name.lower()
        for join in joins
        if side_of(join) in ("RIGHT", "FULL")
        for name in join.args.get("using") or []
    )


def mirrored(script: Script, select: exp.Select, at: int) -> exp.Select:
    """Write a first RIGHT JOIN as a LEFT JOIN of the sides exchanged.

    Raises `InvalidRequest` for a further one: the rows so far would have to be named as one.
    """
    joins = select.args.get("joins") or []
    if not any(side_of(join) == "RIGHT" for join in joins):
        return select
    for join in joins[1:]:
        if side_of(join) == "RIGHT":
            name = str(join.this.alias_or_name)
            raise script.refusal(
                "RIGHT JOIN behind another join is not compiled",
                at=offset_of(join.this, at),
                fix=f"Begin with {name}: FROM {name} LEFT JOIN (SELECT … the joins before) x ON ….",
            )
    changed = select.copy()
    clause, join = changed.args["from_"], changed.args["joins"][0]
    first, second = clause.this, join.this
    clause.set("this", second.copy())
    join.set("this", first.copy())
    join.set("side", "LEFT")
    return changed


def full(matched: Node, alone: Node) -> UnionAll:
    """Return the rows of a FULL join from those of the LEFT join and of the anti join beside.

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
