"""Conditions are true or false: a number or a time in the place of one is refused, as by Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from projections.sql.operators.tree import Join, Map, Node, expressions_of, inputs_of, walk
from projections.sql.values.types import TEMPORAL, type_of
from projections.sql.words.decimals import DECIMAL, FLOATING, INTEGERS
from projections.sql.words.places import Script, offset_of


def check_truths(script: Script, tree: Node) -> None:
    """Raise `InvalidRequest` for a condition that is a number, a day or a time."""
    for node in walk(tree):
        if isinstance(node, Map | Join):
            known = {each.name: each.type for side in inputs_of(node) for each in side.columns}
            for part in (*_whole(node), *_asked(node)):
                _check(script, part, known)


def _check(script: Script, part: exp.Expr, known: Mapping[str, str]) -> None:
    kind = type_of(part, lambda found: known.get(found.name, ""))
    odd = kind in (*INTEGERS, *FLOATING, *TEMPORAL) or DECIMAL.fullmatch(kind) is not None
    if odd and not isinstance(part, exp.Literal):
        raise script.refusal(
            f"a condition is {kind}, neither true nor false",
            at=offset_of(part, 0),
            fix="Compare it: x <> 0, t IS NOT NULL.",
        )


def _whole(node: Map | Join) -> tuple[exp.Expr, ...]:
    return node.where if isinstance(node, Map) else node.rest


def _asked(node: Map | Join) -> Iterator[exp.Expr]:
    """Yield what AND, OR, NOT, CASE and IF ask."""
    for expression in expressions_of(node):
        for part in expression.walk():
            match part:
                case exp.And() | exp.Or():
                    yield from (part.this, part.expression)
                case exp.Not():
                    yield part.this
                case exp.If() if not _of_subject(part):
                    yield part.this


def _of_subject(part: exp.Expr) -> bool:
    """Say whether this is a WHEN of a CASE that compares with something."""
    return isinstance(part.parent, exp.Case) and part.parent.this is not None
