"""A resolved query to Spark SQL over the views of a run.

Every text is built from the same parts: which rows drive it (all, the new, those of the affected
keys), the lookups, WHERE, and the result. So what is computed for the affected keys is the same
computation as the rebuild's, on fewer rows. Rows whose key holds a NULL identify nothing: they are
left out everywhere alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from projections.sql.decimals import FLOATING, INTEGERS
from projections.sql.expressions import AGGREGATES, render, same_text
from projections.sql.inputs import Lookup
from projections.sql.query import Output, Query
from projections.sql.shape import ORDER
from projections.sql.totals import total_sql
from projections.sql.windows import windowed
from schemas.identifiers import spark_name

AFFECTED = "affected"


def newest_sql(query: Query, key: Sequence[Output], *, view: str) -> str:
    """Rows of `view`, the newest of each key, with the order columns that the runner keeps."""
    order = [f"{_driver(query)}.{column} AS {column}" for column in ORDER]
    return _newest(query, key, f"FROM {_drive(query, view)}", extra=order)


def rows_sql(query: Query, key: Sequence[Output], *, affected: bool) -> str:
    """All rows of the projection, or those of the keys in the view `affected`."""
    drive = f"FROM {_drive(query, query.driver.view)}"
    if affected:
        same = " AND ".join(
            f"{AFFECTED}.{spark_name(part.name)} = ({render(part.expression)})" for part in key
        )
        drive += f" LEFT SEMI JOIN {AFFECTED} ON {same}"
    drive += "".join(_join(lookup) for lookup in query.lookups)
    if query.grouped:
        return _grouped(query, key, drive)
    return _newest(query, key, drive, extra=[])


def affected_sql(query: Query, key: Sequence[Output]) -> str:
    """Keys that the new rows of any input may have changed, each once.

    A fact that WHERE leaves out affects nothing. A changed version affects the facts in its range,
    whatever its content.
    """
    keys = _select(key)
    own = query.driver_only()
    new = _drive(query, query.driver.view + "_new")
    parts = [f"SELECT {keys} FROM {new}{_conditions(own, key)}"]
    for lookup in query.lookups:
        drive = _drive(query, query.driver.view)
        parts.append(f"SELECT {keys} FROM {drive}{_touched(lookup)}{_conditions(own, key)}")
    names = ", ".join(spark_name(part.name) for part in key)
    return f"SELECT DISTINCT {names} FROM ({' UNION ALL '.join(parts)})"


def uncertain_sums(query: Query) -> tuple[str, ...]:
    """Sums and averages of which it is unknown whether they add floating-point numbers."""
    nodes = [output.expression for output in query.outputs]
    nodes += [query.having] if query.having is not None else []
    return tuple(
        render(found)
        for node in nodes
        for found in node.find_all(exp.Sum, exp.Avg)
        if not query.type_of(_argument(found))
    )


def _driver(query: Query) -> str:
    return spark_name(query.driver.alias)


def _drive(query: Query, view: str) -> str:
    if query.window is not None:
        return windowed(query.window, view, _driver(query))
    return f"{view} AS {_driver(query)}"


def _join(lookup: Lookup) -> str:
    alias = spark_name(lookup.source.alias)
    conditions = [*_looked_up(lookup, alias), f"NOT {alias}._deleted"]
    conditions += [f"({render(part)})" for part in lookup.extra]
    side = "LEFT" if lookup.left else "INNER"
    return f" {side} JOIN {lookup.source.view} AS {alias} ON {' AND '.join(conditions)}"


def _touched(lookup: Lookup) -> str:
    alias = spark_name(lookup.source.alias)
    return (
        f" INNER JOIN {lookup.source.view}_new AS {alias}"
        f" ON {' AND '.join(_looked_up(lookup, alias))}"
    )


def _looked_up(lookup: Lookup, alias: str) -> list[str]:
    """Equality on the whole key, and valid_from <= t < valid_to: no later version."""
    conditions = [f"{render(ours)} = ({render(theirs)})" for ours, theirs in lookup.pairs]
    time = f"({render(lookup.as_of)})"
    conditions.append(f"{alias}.valid_from <= {time}")
    conditions.append(f"({alias}.valid_to IS NULL OR {time} < {alias}.valid_to)")
    return conditions


def _where(query: Query, key: Sequence[Output]) -> str:
    return _conditions(query.where, key)


def _conditions(parts: Sequence[exp.Expr], key: Sequence[Output]) -> str:
    texts = [f"({render(part)})" for part in parts]
    texts += [f"({render(part.expression)}) IS NOT NULL" for part in key]
    return f" WHERE {' AND '.join(texts)}" if texts else ""


def _select(outputs: Sequence[Output]) -> str:
    return ", ".join(f"{render(part.expression)} AS {spark_name(part.name)}" for part in outputs)


def _newest(query: Query, key: Sequence[Output], drive: str, *, extra: list[str]) -> str:
    """Keep of the rows of one key the one of the latest event time, then sequence."""
    driver = _driver(query)
    partition = ", ".join(render(part.expression) for part in key)
    order = ", ".join(f"{driver}.{column} DESC" for column in ORDER)
    rank = f"row_number() OVER (PARTITION BY {partition} ORDER BY {order}) AS __rank"
    inner = ", ".join([_select(query.outputs), *extra, rank])
    names = ", ".join(
        [spark_name(part.name) for part in query.outputs] + (list(ORDER) if extra else [])
    )
    return f"SELECT {names} FROM (SELECT {inner} {drive}{_where(query, key)}) WHERE __rank = 1"


def _grouped(query: Query, key: Sequence[Output], drive: str) -> str:
    driver = _driver(query)
    groups = [render(group) for group in query.groups]
    texts = {same_text(group) for group in query.groups}
    if query.window is not None:
        columns = [f"{driver}.`__window_start`", f"{driver}.`__window_end`"]
        groups += columns
        texts |= set(columns)
    select = ", ".join(
        f"{_aggregated(query, output.expression, texts)} AS {spark_name(output.name)}"
        for output in query.outputs
    )
    having = ""
    if query.having is not None:
        having = f" HAVING {_aggregated(query, query.having, texts)}"
    return f"SELECT {select} {drive}{_where(query, key)} GROUP BY {', '.join(groups)}{having}"


def _aggregated(query: Query, node: exp.Expr, groups: set[str]) -> str:
    """Write an expression over groups: aggregates exact, other columns as their newest value."""
    newest = ", ".join(f"{_driver(query)}.{column}" for column in ORDER)

    def replaced(found: exp.Expr) -> exp.Expr:
        if same_text(found) in groups:
            return exp.Var(this=render(found))
        if isinstance(found, exp.Filter):
            return exp.Var(this=_aggregate(query, found.this, found.expression.this))
        if isinstance(found, AGGREGATES):
            return exp.Var(this=_aggregate(query, found, None))
        if isinstance(found, exp.Column):
            return exp.Var(this=f"max_by({render(found)}, struct({newest}))")
        return found

    return render(node.copy().transform(replaced))


def _argument(aggregate: exp.Expr) -> exp.Expr:
    inner: exp.Expr = aggregate.this
    return inner.expressions[0] if isinstance(inner, exp.Distinct) else inner


def _aggregate(query: Query, aggregate: exp.Expr, only: exp.Expr | None) -> str:
    """Write an aggregate so that it does not depend on the order in which rows are added."""
    if isinstance(aggregate, exp.Sum | exp.Avg):
        kind = query.type_of(_argument(aggregate))
        distinct = isinstance(aggregate.this, exp.Distinct)
        value = render(_argument(aggregate))
        if only is not None:
            value = f"CASE WHEN {render(only)} THEN {value} END"
        if kind in FLOATING or (kind in INTEGERS and isinstance(aggregate, exp.Avg)):
            average = isinstance(aggregate, exp.Avg)
            return total_sql(value, kind, average=average, distinct=distinct)
    text = render(aggregate)
    return text if only is None else f"{text} FILTER (WHERE {render(only)})"
