"""What a query of one step must keep to, so that it is kept by keys: these follow from each fact.

A row then has the same key whatever the joined tables say, a group's row is identified by its
groups, and each fact looks up one version at most of a table, by its own columns.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.operators.resolving import used
from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
    Grouped,
    Join,
    Map,
    Newest,
    Scan,
    Windowed,
    scans,
    walk,
)
from projections.sql.operators.windows import WindowKind
from projections.sql.planning.joins import check_families
from projections.sql.plans.key_steps import fact_columns
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.values.expressions import same_text, unwrapped
from projections.sql.values.types import type_of
from projections.sql.words.decimals import FLOATING
from projections.sql.words.places import offset_of


def check_fact_keys(decl: ProjectionDecl, tree: Newest) -> None:
    """Check the tree of a query of one step, as it was read. Raises `InvalidRequest`."""
    joins = [node for node in walk(tree) if isinstance(node, Join)]
    for number, join in enumerate(joins):
        _check_lookup(decl, join, scans(join.right)[0], number, _columns_of_facts(tree))
    check_key_types(decl, tree, partial(_place_of, decl))
    grouped = next((node for node in walk(tree) if isinstance(node, Grouped)), None)
    if grouped is not None:
        _check_groups(decl, tree, grouped)
        return
    for name in tree.keys:
        if name not in fact_columns(tree.input):
            raise _moving_key(decl, name)


def check_key_types(decl: ProjectionDecl, tree: Newest, place: Callable[[str], int]) -> None:
    """Refuse key columns that are floating-point numbers, at their `place` in the statement."""
    kinds = {each.name: each.type for each in tree.columns}
    for name in tree.keys:
        if kinds.get(name) in FLOATING:
            raise decl.script.refusal(
                f"key column {name} is a floating-point number",
                at=place(name),
                fix=f"Convert it: CAST(… AS DECIMAL(18, 6)) AS {name}.",
            )


def as_resolved(node: exp.Expr) -> exp.Expr:
    """Return an expression over a tree's columns as the query has it: by alias and name."""

    def named(found: exp.Expr) -> exp.Expr:
        alias, dot, name = found.name.partition(".")
        if not isinstance(found, exp.Column) or not dot:
            return found
        return exp.column(name, table=alias, quoted=True)

    return node.copy().transform(named)


def _columns_of_facts(tree: Newest) -> Set[str]:
    """Return the names under which the facts' own columns are read."""
    return next(
        {each.name for each in node.outputs}
        for node in walk(tree)
        if isinstance(node, Map) and isinstance(node.input, Scan)
    )


def _check_lookup(
    decl: ProjectionDecl, join: Join, scan: Scan, number: int, facts: Set[str]
) -> None:
    """Check that a version is looked up by its whole key, by a fact's columns alone."""
    written = decl.query.args["joins"][number].this
    at, alias, driver = offset_of(written, decl.offset), _alias(written), _driver(decl)
    theirs = {f"{alias}.{each.name}": each.type for each in scan.columns}
    keys = [f"{alias}.{name}" for name in scan.relation.key]
    computed = {
        each.name: each.expression
        for side in (join.left, join.right)
        if isinstance(side, Map)
        for each in side.outputs
    }
    pairs = [(computed[ours], computed[other]) for ours, other in join.pairs]
    rest = [part for part in join.rest if part not in join.as_of]
    # What the time reads is looked at below; conditions that are asked behind others repeat it.
    known = {*facts, *theirs}.union(*map(used, join.as_of))
    for parts in (*pairs, *((part,) for part in rest)):
        if not set().union(*map(used, parts)) <= known:
            raise decl.script.refusal(
                f"this condition of {alias} reads another joined table",
                at=min(offset_of(_implied(part), offset_of(part, at)) for part in parts),
                fix=f"Compare {alias} with columns of {driver} only.",
            )
    assert isinstance(join.right, Map), "the rows of a joined table are mapped"
    # A column that is converted equates nothing: two keys could become one.
    columns = [other for _, other in pairs if isinstance(other, exp.Column)]
    for part in (*join.right.where, *map(_implied, rest)):
        fixed = _equal_to_constant(part)
        if fixed is not None and fixed[0].name in keys:
            kinds = theirs[fixed[0].name], type_of(fixed[1], lambda _: "")
            check_families(decl.script, kinds, part, at)
            columns.append(fixed[0])
    equated = {each.name for each in columns}
    missing = [name for name in scan.relation.key if f"{alias}.{name}" not in equated]
    if missing or not scan.relation.key:
        raise decl.script.refusal(
            f"the join must equate every key column of {scan.name} with an expression of {driver}; "
            f"missing: {', '.join(missing) or 'it has no key'}",
            at=at,
            fix=" AND ".join(f"{alias}.{name} = {driver}.…" for name in missing)
            or f"Declare a key: CREATE SOURCE name ON {scan.name} WITH (key = '…').",
        )
    time = unwrapped(join.as_of[0].expression) if len(join.as_of) == len(_HOLDS) else exp.Null()
    if not used(time) or not used(time) <= facts:
        event_time = scans(join)[0].relation.event_time or "occurred_at"
        raise decl.script.refusal(
            f"AS OF must be a time of {driver}, the row that looks the version up",
            at=offset_of(written.args["version"].expression, at),
            fix=f"Write FOR SYSTEM_TIME AS OF {driver}.{event_time}.",
        )


_HOLDS = ("valid_from", "valid_to")
"""What a version is chosen by: each bound has a condition."""


def _equal_to_constant(part: exp.Expr) -> tuple[exp.Column, exp.Expr] | None:
    """Return the column of a version that a condition says the one value of, and that value."""
    if not isinstance(part, exp.EQ):
        return None
    one, other = unwrapped(part.this), unwrapped(part.expression)
    for side, value in ((one, other), (other, one)):
        if isinstance(side, exp.Column) and not used(value):
            return side, value
    return None


def _implied(part: exp.Expr) -> exp.Expr:
    """Return what holds where a condition does: of one that is asked behind others, that one.

    `joins` writes these, and who writes the same means the same. Any other CASE stays as it is: it
    may hold by another of its values.
    """
    if not isinstance(part, exp.Case) or part.this is not None or len(part.args["ifs"]) != 1:
        return part
    other: exp.Expr | None = part.args.get("default")
    never = isinstance(other, exp.Boolean) and not other.this
    asked: exp.Expr = part.args["ifs"][0].args["true"]
    return asked if never else part


def _check_groups(decl: ProjectionDecl, tree: Newest, grouped: Grouped) -> None:
    """The key must be the groups: every group once, nothing besides, none that moves."""
    window = grouped.input if isinstance(grouped.input, Windowed) else None
    below = grouped.input if window is None else window.input
    assert isinstance(below, Map), "what is grouped by is computed"
    _check_window(decl, window, below)
    groups = {e.name: e.expression for e in below.outputs if e.name in grouped.keys}
    named = {meant: name for name, meant in _meant(tree).items() if name in tree.keys}
    facts = fact_columns(below)
    for group, expression in groups.items():
        if group not in named:
            reason = f"GROUP BY {_short(expression)} is not in the key"
            raise _key_differs(decl, tree, groups, window, reason)
        if group not in facts:
            raise _moving_key(decl, named[group])
    bounds = (WINDOW_START, WINDOW_END)
    for name in tree.keys:
        if _meant(tree).get(name) not in (*groups, *bounds):
            reason = f"key column {name} is not in GROUP BY"
            raise _key_differs(decl, tree, groups, window, reason)
    if window is None or WINDOW_END in named:
        return
    if WINDOW_START not in named:
        reason = f"GROUP BY {window.kind} is not in the key"
        raise _key_differs(decl, tree, groups, window, reason)
    if window.kind is WindowKind.CUMULATE:
        reason = "windows of CUMULATE differ in window_end"
        raise _key_differs(decl, tree, groups, window, reason)


def _check_window(decl: ProjectionDecl, window: Windowed | None, below: Map) -> None:
    if window is None:
        return
    time = next(each.expression for each in below.outputs if each.name == window.time)
    driver, relation = _driver(decl), scans(below)[0].relation
    if not used(time) or window.time not in fact_columns(below):
        raise decl.script.refusal(
            f"the time of {window.kind} must come from {relation.name} alone",
            at=offset_of(time, decl.offset),
            fix=f"Use a time of {driver}, as {driver}.{relation.event_time or 'occurred_at'}.",
        )


def _meant(tree: Newest) -> dict[str, str]:
    """Return the result columns that are a group, or a bound of the window, as they are."""
    assert isinstance(tree.input, Map), "results are computed"
    made = {each.name: unwrapped(each.expression) for each in tree.input.outputs}
    return {name: each.name for name, each in made.items() if isinstance(each, exp.Column)}


def _key_differs(
    decl: ProjectionDecl,
    tree: Newest,
    groups: dict[str, exp.Expr],
    window: Windowed | None,
    reason: str,
) -> InvalidRequest:
    names = {meant: name for name, meant in _meant(tree).items()}
    wanted = [names.get(group, f"{_short(value)} AS …") for group, value in groups.items()]
    if window is not None:
        start = window.kind is not WindowKind.CUMULATE
        bound = (WINDOW_START, "window_start") if start else (WINDOW_END, "window_end")
        wanted.append(names.get(*bound))
    return decl.script.refusal(
        f"{reason}: a grouped row is identified by its groups",
        at=decl.key_at,
        fix=f"Write key = '{', '.join(wanted)}' and select these columns.",
    )


def _moving_key(decl: ProjectionDecl, name: str) -> InvalidRequest:
    return decl.script.refusal(
        f"key column {name} comes from a joined table: a row that changes there would move to "
        "another key",
        at=_place_of(decl, name),
        fix=f"Use columns of {_driver(decl)} in the key and select {name} beside them.",
    )


def _short(group: exp.Expr) -> str:
    found = unwrapped(as_resolved(group))
    return str(found.name) if isinstance(found, exp.Column) else same_text(found)


def _place_of(decl: ProjectionDecl, name: str) -> int:
    """Return where a result column is computed."""
    for item in decl.query.expressions:
        own = item.expression.name if isinstance(item, exp.Dot) else item.alias_or_name
        if own.lower() == name.lower():
            return offset_of(item, decl.offset)
    return decl.key_at


def _driver(decl: ProjectionDecl) -> str:
    return _alias(decl.query.args["from_"].this)


def _alias(item: exp.Expr) -> str:
    table = item.this if isinstance(item, exp.Stream) else item
    return str(table.alias or table.name)
