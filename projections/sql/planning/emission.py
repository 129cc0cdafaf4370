"""`emit = 'when …'`: of a result's rows, those whose newest values satisfy a condition."""

from __future__ import annotations

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.forms.arguments import read_query
from projections.sql.operators.tree import Map, Newest, column, passed
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.values.expressions import check
from projections.sql.values.types import type_of
from projections.sql.words.places import Script, nearest
from projections.sql.words.tokens import tokenized


def emitted(decl: ProjectionDecl, when: str, newest: Newest) -> Newest:
    """Return the rows of `newest` for which a condition over its columns holds.

    A row that no longer satisfies it leaves the table. Raises `InvalidRequest` for a condition that
    cannot be read, or is none.
    """
    at = decl.emit_at
    condition = _condition(decl, when)
    check(decl.script, condition, at=at, aggregates=False)
    known = {each.name.lower(): each for each in newest.columns}

    def resolved(found: exp.Expr) -> exp.Expr:
        if not isinstance(found, exp.Column):
            return found
        if len(found.parts) > 1 or found.name.lower() not in known:
            raise decl.script.refusal(
                f"emit: the projection gives no column {found.name}{nearest(found.name, known)}",
                at=at,
                fix=f"Name columns of its SELECT: {', '.join(c.name for c in newest.columns)}.",
            )
        return column(known[found.name.lower()].name)

    flat = condition.transform(resolved)
    kind = type_of(flat, lambda found: known[found.name.lower()].type)
    if kind not in ("BOOLEAN", ""):
        raise decl.script.refusal(
            f"emit = 'when {when}' is {kind}, neither true nor false",
            at=at,
            fix="Write a condition, as emit = 'when failures >= 3'.",
        )
    held = Map(input=newest, outputs=passed(newest.columns), where=(flat,))
    return Newest(input=held, keys=newest.keys)


def _condition(decl: ProjectionDecl, when: str) -> exp.Expr:
    """Read the text of a condition. Its place is that of the option: it stands in quotes."""
    inner = Script(origin="emit", text=f"SELECT {when}")
    try:
        query = read_query(inner, tokenized(inner))
    except InvalidRequest as error:
        raise _no_condition(decl, when) from error
    items = query.expressions if isinstance(query, exp.Select) else []
    rest = [name for name, part in query.args.items() if part and name != "expressions"]
    if len(items) != 1 or rest or isinstance(items[0], exp.Alias):
        raise _no_condition(decl, when)
    found: exp.Expr = items[0]
    for node in found.walk():
        # Offsets in the condition's text say nothing of places in the file.
        node.meta.pop("start", None)
    return found


def _no_condition(decl: ProjectionDecl, when: str) -> InvalidRequest:
    return decl.script.refusal(
        f"emit = 'when {when}' is no condition",
        at=decl.emit_at,
        fix="Write one condition over the result's columns: emit = 'when failures >= 3'.",
    )
