"""A parsed SELECT as the planner sees it: every name resolved, everything beyond it refused."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.catalog import Catalog
from projections.sql.collected_refusals import refuse
from projections.sql.declarations import ProjectionDecl
from projections.sql.earlier_names import with_earlier_names
from projections.sql.expressions import (
    AGGREGATES,
    check,
    conjuncts,
    has_aggregate,
    same_text,
    unwrapped,
)
from projections.sql.inputs import VersionLookup, read_inputs
from projections.sql.places import Script, offset_of
from projections.sql.scope import QueryScope, QuerySource
from projections.sql.types import TEMPORAL, type_of
from projections.sql.windows import Window, read_window, window_kind

_REFUSED_CLAUSES = {
    "order": (
        "ORDER BY has no meaning in a table",
        "Order when you read it, or say how many rows are the first: ORDER BY … LIMIT 10.",
    ),
    "offset": ("OFFSET is not compiled", "Skip rows when you read it."),
}
_KNOWN_CLAUSES = ("expressions", "from_", "joins", "where", "group", "having")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One column of the result."""

    name: str
    expression: exp.Expr
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedQuery:
    """A resolved query. `groups` are the grouping expressions besides the window.

    `grouped` is false for a query of single rows; then `groups`, `window`, `having` are empty.
    """

    scope: QueryScope
    driver: QuerySource
    lookups: tuple[VersionLookup, ...]
    where: tuple[exp.Expr, ...]
    grouped: bool
    groups: tuple[exp.Expr, ...]
    window: Window | None
    having: exp.Expr | None
    outputs: tuple[Output, ...]

    def type_of(self, node: exp.Expr) -> str:
        """Return the type of a resolved expression, or the empty text."""
        return type_of(node, self._column_type)

    def _column_type(self, node: exp.Expr) -> str:
        column = self.scope.column(node)
        return column.type if column is not None else ""


def read_query(decl: ProjectionDecl, catalog: Catalog) -> ResolvedQuery:
    """Resolve a projection's query. Raises `InvalidRequest` for what the dialect lacks."""
    script, select, at = decl.script, decl.query, decl.offset
    refuse_clauses(script, select, at)
    scope, driver, lookups = read_inputs(script, select, catalog, at=at)
    select = with_earlier_names(select, scope.knows) if isinstance(select, exp.Select) else select
    items = read_items(script, select, at)
    window, group_nodes = _group(scope, select, driver, items)
    scope.window = window is not None
    groups = tuple(group_expression(scope, node, items) for node in group_nodes)
    grouped = select.args.get("group") is not None
    outputs = tuple(_output(scope, item, grouped) for item in items)
    unique(script, outputs)
    having = select.args.get("having")
    if having is not None and not grouped:
        raise script.refusal(
            "HAVING without GROUP BY", at=offset_of(having, at), fix="Use WHERE for single rows."
        )
    where = select.args.get("where")
    return ResolvedQuery(
        scope=scope,
        driver=driver,
        lookups=lookups,
        where=tuple(
            resolved(scope, part, aggregates=False)
            for part in conjuncts(where.this if where is not None else None)
        ),
        grouped=grouped,
        groups=groups,
        window=window,
        having=None if having is None else having_of(scope, having.this, items, groups),
        outputs=outputs,
    )


def refuse_clauses(
    script: Script, select: exp.Expr, at: int, *, known: tuple[str, ...] = ()
) -> None:
    """Refuse the clauses of a SELECT that are not compiled; `known` are further ones that are."""
    refuse_others(script, select, at, (*_KNOWN_CLAUSES, *known))


def is_distinct(script: Script, select: exp.Expr, at: int) -> bool:
    """Say whether a SELECT is DISTINCT, over all of its columns. Raises `InvalidRequest`."""
    distinct = select.args.get("distinct")
    if isinstance(distinct, exp.Distinct) and distinct.args.get("on"):
        raise script.refusal(
            "DISTINCT ON is not in the dialect",
            at=offset_of(distinct, at),
            fix="Keep one row of each: QUALIFY ROW_NUMBER() OVER (PARTITION BY … ORDER BY …) = 1.",
        )
    return bool(distinct)


def refuse_others(script: Script, query: exp.Expr, at: int, known: tuple[str, ...]) -> None:
    """Refuse the clauses of a query but those that are `known`."""
    for clause, content in query.args.items():
        if not content or clause in known:
            continue
        where = content[0] if isinstance(content, list) else content
        start = offset_of(query, at)
        place = offset_of(where, start) if isinstance(where, exp.Expr) else start
        reason, fix = _REFUSED_CLAUSES.get(
            clause,
            (f"the clause {clause.strip('_').upper()} is not in the dialect", "Leave it out."),
        )
        raise script.refusal(reason, at=place, fix=fix)


def resolved(scope: QueryScope, node: exp.Expr, *, aggregates: bool = False) -> exp.Expr:
    """Check an expression, and resolve its names."""
    check(scope.script, node, at=scope.at, aggregates=aggregates)
    return scope.resolve(node)


def named_as(name: str) -> bool:
    """Say whether a column of a table may have this name."""
    return name.isidentifier() and name.isascii() and not name.startswith("_")


def read_items(script: Script, select: exp.Expr, at: int) -> list[Output]:
    """Read the result columns of a SELECT, each with a name."""
    items: list[Output] = []
    for node in select.expressions:
        place = offset_of(node, at)
        if isinstance(node, exp.Star):
            refuse(
                script.refusal(
                    "* does not name columns: a new field would change the projection",
                    at=place,
                    fix="Name the columns.",
                )
            )
            continue
        value = node.this if isinstance(node, exp.Alias) else node
        named = isinstance(node, exp.Alias | exp.Column | exp.Dot)
        name = str(node.alias_or_name if not isinstance(node, exp.Dot) else node.expression.name)
        if not named:
            refuse(
                script.refusal("an expression without a name", at=place, fix="Name it: … AS total.")
            )
            name = f"column_{len(items)}"
        if isinstance(value, exp.Column) and isinstance(value.this, exp.Star):
            name = "star"
        if not named_as(name):
            refuse(
                script.refusal(
                    f"{name!r} cannot name a column of a table",
                    at=place,
                    fix="Use letters, digits and _, not first: … AS total.",
                )
            )
        items.append(Output(name=name, expression=value, at=place))
    return items


def _output(scope: QueryScope, item: Output, grouped: bool) -> Output:
    check(scope.script, item.expression, at=item.at, aggregates=True)
    if not grouped and has_aggregate(item.expression):
        raise _total(scope.script, item)
    return replace(item, expression=scope.resolve(item.expression))


def refuse_totals(script: Script, items: list[Output]) -> None:
    """Refuse aggregates, other than before OVER, in a SELECT without GROUP BY."""
    for item in items:
        outside = item.expression.copy().transform(
            lambda node: exp.Null() if isinstance(node, exp.Window) else node
        )
        if has_aggregate(outside):
            raise _total(script, item)


def _total(script: Script, item: Output) -> InvalidRequest:
    return script.refusal(
        f"an aggregate in {item.name} without GROUP BY: the result would have no key",
        at=item.at,
        fix="Add GROUP BY with the columns of the key; for one total of everything select "
        "'all' AS scope, GROUP BY 'all', key = 'scope'.",
    )


def unique(script: Script, outputs: tuple[Output, ...]) -> None:
    """Refuse two result columns of one name."""
    seen: set[str] = set()
    for output in outputs:
        if output.name.lower() in seen:
            raise script.refusal(
                f"two columns are named {output.name}", at=output.at, fix="Name one of them by AS."
            )
        seen.add(output.name.lower())


def _group(
    scope: QueryScope,
    select: exp.Expr,
    driver: QuerySource,
    items: list[Output],
) -> tuple[Window | None, list[exp.Expr]]:
    group = select.args.get("group")
    if group is None:
        return None, []
    refuse_group_clauses(scope, group)
    window: Window | None = None
    rest = []
    for node in group.expressions:
        kind = window_kind(node)
        if kind is None:
            rest.append(node)
            continue
        if window is not None:
            raise scope.script.refusal(
                "two windows in one GROUP BY",
                at=offset_of(node, scope.at),
                fix="Make one projection for each window.",
            )
        window = _window(scope, read_window(scope.script, node, kind, at=scope.at), driver)
    return window, rest


def refuse_group_clauses(scope: QueryScope, group: exp.Expr) -> None:
    """Refuse what GROUP BY has beside expressions."""
    for clause, content in group.args.items():
        if content and clause != "expressions":
            raise scope.script.refusal(
                f"GROUP BY {clause.replace('_', ' ').upper()} is not compiled",
                at=offset_of(group, scope.at),
                fix="Name the columns; make one projection for each set of them.",
            )


def _window(scope: QueryScope, window: Window, driver: QuerySource) -> Window:
    time = resolved(scope, window.time, aggregates=False)
    at = offset_of(window.time, scope.at)
    if scope.used(time) != {driver.alias}:
        raise scope.script.refusal(
            f"the time of {window.kind} must come from {driver.relation.name} alone",
            at=at,
            fix=f"Use a time of {driver.alias}, as {driver.alias}."
            f"{driver.relation.event_time or 'occurred_at'}.",
        )
    kind = type_of(time, lambda node: getattr(scope.column(node), "type", ""))
    if kind and kind not in TEMPORAL:
        raise scope.script.refusal(
            f"the time of {window.kind} is {kind}, not a time",
            at=at,
            fix="Convert it: TUMBLE(timestamp_millis(x), size) or CAST(x AS TIMESTAMP).",
        )
    return replace(window, time=time)


def group_expression(scope: QueryScope, node: exp.Expr, items: list[Output]) -> exp.Expr:
    """Resolve a grouping expression: an ordinal, a name given by AS, or an expression.

    As in Spark, a column of the input comes before a name given by AS.
    """
    at = offset_of(node, scope.at)
    if isinstance(node, exp.Literal) and not node.is_string:
        if not (node.name.isdigit() and 1 <= int(node.name) <= len(items)):
            raise scope.script.refusal(
                f"GROUP BY {node.name}: there are {len(items)} columns",
                at=at,
                fix="Group by the column's name.",
            )
        node = items[int(node.name) - 1].expression
    elif isinstance(node, exp.Column) and len(node.parts) == 1 and not scope.knows(node.name):
        node = _by_name(items, node.name) or node
    return unwrapped(resolved(scope, node, aggregates=False))


def _by_name(items: list[Output], name: str) -> exp.Expr | None:
    return next((item.expression for item in items if item.name.lower() == name.lower()), None)


def having_of(
    scope: QueryScope,
    node: exp.Expr,
    items: list[Output],
    groups: tuple[exp.Expr, ...],
) -> exp.Expr:
    """Resolve HAVING; a name given by AS stands for its expression, except inside aggregates."""
    group_texts = {same_text(group) for group in groups}

    def replaced(found: exp.Expr) -> exp.Expr:
        if isinstance(found, (exp.Filter, *AGGREGATES)):
            return found.copy()
        if not isinstance(found, exp.Column) or len(found.parts) != 1:
            return found
        value = _by_name(items, found.name)
        if value is None:
            return found
        if scope.knows(found.name):
            return _unless_ambiguous(scope, found, value, group_texts)
        return exp.Paren(this=value.copy())

    check(scope.script, node, at=scope.at, aggregates=True)
    return scope.resolve(node.copy().transform(replaced))


def _unless_ambiguous(
    scope: QueryScope, found: exp.Expr, value: exp.Expr, group_texts: set[str]
) -> exp.Expr:
    column = same_text(scope.resolve(found))
    if column == same_text(scope.resolve(value)) or column in group_texts:
        return found
    raise _ambiguous(scope, found)


def _ambiguous(scope: QueryScope, found: exp.Expr) -> InvalidRequest:
    return scope.script.refusal(
        f"{found.name} in HAVING is a column of the input and a name given by AS",
        at=offset_of(found, scope.at),
        fix="Give the result another name, and use that in HAVING.",
    )
