"""Where maps would be compared: they have no order, and Spark refuses them there when it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from projections.sql.operators.tree import (
    Call,
    Function,
    Grouped,
    Join,
    Map,
    Match,
    Newest,
    Node,
    Over,
    Sessions,
    UnionAll,
    expressions_of,
    inputs_of,
    walk,
)
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.values.types import type_of
from projections.sql.words.places import offset_of

_MAP = "MAP<"
_NOWHERE = -1
_COMPARING = (
    *(exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ, exp.GT, exp.GTE, exp.LT, exp.LTE),
    *(exp.In, exp.Between, exp.Greatest, exp.Least, exp.Nullif),
)
_FIX = (
    "Read its entries as rows, FROM x LATERAL VIEW explode(x.prices) t AS k, "
    "v, and take k; or one of its values: prices['name'] AS price."
)


def check_maps(decl: ProjectionDecl, tree: Newest) -> None:
    """Refuse what would compare maps, or rows, lists and structs with maps in them."""
    for node in walk(tree):
        kinds = {each.name: each.type for side in inputs_of(node) for each in side.columns}
        for name, what in _by_column(node):
            if _MAP in kinds[name].upper():
                of_key = isinstance(node, Newest)
                at = decl.key_at if of_key else _place(node, name, decl.offset)
                raise _refusal(decl, what, kinds[name], at)
        for part in _comparisons(node):
            for side in _sides(part):
                kind = _type(side, kinds)
                if _MAP in kind.upper():
                    at = offset_of(part, decl.offset)
                    raise _refusal(decl, "what is compared", kind, at)


def _refusal(decl: ProjectionDecl, what: str, kind: str, at: int) -> Exception:
    return decl.script.refusal(
        f"{what} is {kind}: maps are not compared, and tell no rows apart", at=at, fix=_FIX
    )


def _by_column(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the columns of its input that a node compares, and what they are."""
    match node:
        case Newest():
            yield from ((name, f"key column {name}") for name in node.keys)
        case Grouped():
            # Spark groups by maps, and so it does for DISTINCT, UNION, INTERSECT and EXCEPT here.
            yield from _of_calls(node.calls)
        case Sessions():
            yield from ((name, "what sessions are of") for name in node.keys)
            yield from _of_calls(node.calls)
        case Over():
            yield from ((name, "what rows are partitioned by") for name in node.partition)
            yield from ((each.column, "what rows are ordered by") for each in node.order)
            yield from _of_calls(node.calls)
        case Match():
            yield from ((name, "what rows are partitioned by") for name in node.partition)
        case Join():
            yield from ((name, "what rows are joined by") for pair in node.pairs for name in pair)
        case _:
            return


def _of_calls(calls: tuple[Call, ...]) -> Iterator[tuple[str, str]]:
    for call in calls:
        if call.argument is not None and call.function in (Function.MIN, Function.MAX):
            yield call.argument, f"the argument of {call.function.upper()}"
        if call.argument is not None and call.function in (Function.MODE, Function.ELEMENT):
            yield call.argument, "what is compared"
        yield from ((each.column, "what a list is ordered by") for each in call.order)
        if call.by is not None:
            yield call.by.name, f"what {call.function.upper()} chooses by"


def _place(node: Node, name: str, default: int) -> int:
    """Return where what gives a column of a node's input stands in the script."""
    for side in inputs_of(node):
        while isinstance(side, Map | UnionAll):
            if isinstance(side, UnionAll):
                side = side.inputs[0]
                continue
            given = next((each for each in side.outputs if each.name == name), None)
            if given is None:
                break
            at = offset_of(given.expression, _NOWHERE)
            if at != _NOWHERE:
                return at
            if not isinstance(given.expression, exp.Column):
                break
            side, name = side.input, given.expression.name
    return default


def _comparisons(node: Node) -> Iterator[exp.Expr]:
    for expression in expressions_of(node):
        yield from expression.find_all(*_COMPARING)


def _sides(part: exp.Expr) -> Iterator[exp.Expr]:
    yield part.this
    further = part.args.get("expression")
    yield from (*part.expressions, *([] if further is None else [further]))


def _type(node: exp.Expr, kinds: Mapping[str, str]) -> str:
    return type_of(node, lambda found: kinds.get(found.name, ""))
