"""The parts of a SELECT as the planner sees them: names resolved, everything beyond refused."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.operators.scope import QueryScope
from projections.sql.values.expressions import (
    AGGREGATES,
    check,
    has_aggregate,
    same_text,
    unwrapped,
)
from projections.sql.words.collected_refusals import refuse
from projections.sql.words.places import Script, offset_of

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


def refuse_totals(script: Script, items: list[Output]) -> None:
    """Refuse aggregates, other than before OVER, in a SELECT without GROUP BY.

    Those in a lambda are refused where lambdas are checked.
    """
    for item in items:
        outside = item.expression.copy().transform(
            lambda node: exp.Null() if isinstance(node, exp.Window | exp.Lambda) else node
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


def refuse_group_clauses(scope: QueryScope, group: exp.Expr) -> None:
    """Refuse what GROUP BY has beside expressions."""
    for clause, content in group.args.items():
        if content and clause != "expressions":
            raise scope.script.refusal(
                f"GROUP BY {clause.replace('_', ' ').upper()} is not compiled",
                at=offset_of(group, scope.at),
                fix="Name the columns; make one projection for each set of them.",
            )


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
