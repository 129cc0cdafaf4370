"""Columns of which a query says nothing but NULL: they have no type, so no table can have them."""

from __future__ import annotations

from sqlglot import exp

from projections.sql.operators.tree import (
    Call,
    Function,
    Grouped,
    Map,
    Newest,
    Node,
    Over,
    Sessions,
    UnionAll,
    inputs_of,
    walk,
)
from projections.sql.rendering.totals import KNOWN
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.values.expressions import unwrapped
from projections.sql.words.places import offset_of
from projections.sql.words.spark_functions import HELD_BY_NO_TABLE

_AS_ARGUMENT = (
    *(Function.MIN, Function.MAX, Function.NEWEST, Function.LAG, Function.LEAD),
    *(Function.FIRST_VALUE, Function.LAST_VALUE, Function.NTH_VALUE, Function.MODE),
    *(Function.MAX_BY, Function.MIN_BY, Function.ELEMENT, *KNOWN),
)
"""Functions whose results have the type of their argument."""


def check_voids(decl: ProjectionDecl, tree: Newest) -> None:
    """Refuse a column of the result that is NULL alone, or an array without a type.

    So are values that Spark has, and tables have not.
    """
    for each in tree.columns:
        odd = None if each.type else _held_nowhere(tree, each.name)
        if odd is not None:
            raise decl.script.refusal(
                f"column {each.name} is {HELD_BY_NO_TABLE[odd.name.lower()]}, which no table holds",
                at=_place(decl, each.name, odd),
                fix=f"Convert it: CAST(… AS STRING) AS {each.name}.",
            )
        found = None if each.type else _void_of(tree, each.name)
        if found is not None:
            array = "ARRAY<STRING>" if isinstance(found, exp.Array) else "STRING"
            raise decl.script.refusal(
                f"column {each.name} has no type: nothing but {_said(found)} is given for it",
                at=_place(decl, each.name, found),
                fix=f"Name one: CAST({_said(found)} AS {array}) AS {each.name}.",
            )


def _held_nowhere(node: Node, name: str) -> exp.Expr | None:
    """Return the call that gives a column a value that no table holds."""
    for each in walk(node):
        for output in each.outputs if isinstance(each, Map) else ():
            made = unwrapped(output.expression)
            if output.name == name and _is_held_nowhere(made):
                return made
    return None


def _is_held_nowhere(node: exp.Expr) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.lower() in HELD_BY_NO_TABLE


def _place(decl: ProjectionDecl, name: str, found: exp.Expr) -> int:
    """Return where a column gets its name: NULL itself has no place."""
    named = (each for each in decl.query.find_all(exp.Alias) if each.alias.lower() == name.lower())
    return offset_of(next(named, found), decl.offset)


def _said(found: exp.Expr) -> str:
    return "array()" if isinstance(found, exp.Array) else "NULL"


def _void_of(node: Node, name: str) -> exp.Expr | None:
    """Return what gives a column of a node no type, None where something may give it one."""
    match node:
        case Map():
            given = next(each.expression for each in node.outputs if each.name == name)
            return _void(given, node.input)
        case UnionAll():
            found = [_void_of(each, name) for each in node.inputs]
            return found[0] if None not in found else None
        case Grouped() | Sessions() | Over():
            call = next((each for each in node.calls if each.name == name), None)
            return _passed(node, name) if call is None else _of_call(node, call)
        case _:
            return _passed(node, name)


def _passed(node: Node, name: str) -> exp.Expr | None:
    for side in inputs_of(node):
        if any(each.name == name for each in side.columns):
            return _void_of(side, name)
    return None


def _of_call(node: Node, call: Call) -> exp.Expr | None:
    typed = call.argument is None or call.function not in _AS_ARGUMENT
    return None if typed else _passed(node, str(call.argument))


def _void(given: exp.Expr, rows: Node) -> exp.Expr | None:
    """Return what leaves an expression over rows without a type."""
    given = unwrapped(given)
    match given:
        case exp.Null():
            return given
        case exp.Column():
            return _passed_on(given, rows)
        case exp.Array() if not given.expressions:
            return given
        case exp.Coalesce() | exp.Greatest() | exp.Least():
            parts = [given.this, *given.expressions]
        case exp.Case() | exp.If():
            parts = [each.args["true"] for each in given.args.get("ifs") or [given]]
            default = given.args.get("default") or given.args.get("false")
            parts += [] if default is None else [default]
        case exp.Nullif():
            parts = [given.this]
        case _:
            return None
    found = [_void(each, rows) for each in parts]
    return found[0] if None not in found else None


def _passed_on(given: exp.Column, rows: Node) -> exp.Expr | None:
    known = any(each.name == given.name for each in rows.columns)
    return _void_of(rows, given.name) if known else None
