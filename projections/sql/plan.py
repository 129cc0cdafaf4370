"""From a declaration to a plan: which inputs, which strategy, which SQL.

Every query becomes a tree of operators. A projection in which each fact gives a row by itself keeps
the newest row of each key. Another query of one step is computed again for the keys that its
new input may have changed. In a query of several steps each operator computes the regions again
that a change touches.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.adding import Adding, adding_of, kept_by_adding
from projections.sql.batch import whole
from projections.sql.catalog import Catalog
from projections.sql.certified import check_arguments, uncertified
from projections.sql.collected_refusals import collected
from projections.sql.decimals import FLOATING
from projections.sql.declarations import ProjectionDecl
from projections.sql.element_keys import check_elements
from projections.sql.explain import (
    EVERYTHING,
    NEW_ROWS,
    NEW_ROWS_ADDED,
    TOUCHED_REGIONS,
    cost_of,
    notes_of,
    notes_of_end,
    notes_of_rows,
    notes_of_steps,
)
from projections.sql.expressions import same_text
from projections.sql.inputs import UNKNOWN, look_at_inputs
from projections.sql.key_columns import key_meant
from projections.sql.key_steps import a_row_for_each_fact, rows_sql
from projections.sql.map_places import check_maps
from projections.sql.places import too_deep
from projections.sql.presence import of_several_facts
from projections.sql.pruning import pruned
from projections.sql.query import Output, ResolvedQuery, read_query
from projections.sql.query_steps import several_steps
from projections.sql.reading import read_tree
from projections.sql.scope import WINDOW_COLUMNS
from projections.sql.shape import END, PARTIAL, Input, InputKind, Plan, Strategy
from projections.sql.spark_text import SparkText
from projections.sql.totals import adds_doubles
from projections.sql.tree import (
    Exploded,
    Grouped,
    Newest,
    Stateless,
    scans,
    walk,
)
from projections.sql.truths import check_truths
from projections.sql.void_columns import check_voids
from projections.sql.windows import WindowKind
from schemas.identifiers import spark_name

__all__ = ["Input", "InputKind", "Plan", "Strategy", "plan"]

SEMANTICS = 1
"""Part of every fingerprint: raise it when the same SQL is to give other rows than before."""
EXACT_DOUBLES = "exact totals of doubles"
"""Part of the fingerprints of queries whose totals were rounded at each step once."""


def plan(decl: ProjectionDecl, catalog: Catalog) -> Plan:
    """Compile a projection. Raises `InvalidRequest` with place, reason and a form that works."""
    try:
        made = _planned(decl, catalog)
    except InvalidRequest as error:
        if UNKNOWN in error.fields and collected() is not None:
            look_at_inputs(decl.script, decl.query, catalog, at=decl.offset)
        raise
    except RecursionError as error:
        raise too_deep(decl.script, decl.offset) from error
    further = [each.note for each in (decl.trigger, decl.sink) if each is not None]
    return replace(made, notes=(*made.notes, *further))


def _planned(decl: ProjectionDecl, catalog: Catalog) -> Plan:
    if decl.final or decl.when is not None or decl.functions or several_steps(decl.query):
        return _several(decl, catalog)
    query = read_query(decl, catalog)
    key = _key(decl, query)
    if query.grouped:
        _check_grouped_key(decl, query, key)
    else:
        _check_row_key(decl, query, key)
    read = read_tree(decl, catalog)
    tree = pruned(read)
    check_truths(decl.script, read)
    check_maps(decl, read)
    check_voids(decl, read)
    newest = a_row_for_each_fact(tree)
    adding = None if newest else adding_of(tree)
    # What is kept beside the results for adding is none of the query's own expressions.
    beyond = uncertified(tree)
    tree = tree if adding is None else adding.tree
    strategy = Strategy.NEWEST if newest else Strategy.KEYS
    if not (newest or adding or beyond) and kept_by_adding(tree):
        strategy = Strategy.REGIONS
    text = SparkText()
    ordered = newest or (adding is not None and adding.ordered)
    return Plan(
        name=decl.name,
        key=tree.keys,
        columns=tuple(each for each in tree.columns if not each.name.startswith(PARTIAL)),
        inputs=_inputs(tree),
        stateful=query.grouped,
        strategy=strategy,
        small=beyond is None,
        rows_sql=whole(tree, text) if ordered else rows_sql(tree, text),
        freshness=decl.freshness,
        fingerprint=_fingerprint(decl, tree),
        cost=cost_of(query, strategy, adding),
        notes=notes_of(query, tree, strategy, beyond, adding),
        tree=tree,
        adding=adding,
    )


def _several(decl: ProjectionDecl, catalog: Catalog) -> Plan:
    """Compile a query of several steps: its tree says how it is kept."""
    read = read_tree(decl, catalog)
    tree = pruned(read)
    for column in tree.columns:
        if column.name in tree.keys and column.type in FLOATING:
            raise decl.script.refusal(
                f"key column {column.name} is a floating-point number",
                at=decl.key_at,
                fix=f"Convert it: CAST(… AS DECIMAL(18, 6)) AS {column.name}.",
            )
    check_arguments(decl.script, read)
    check_truths(decl.script, read)
    check_elements(decl, tree)
    check_maps(decl, read)
    check_voids(decl, read)
    kept = _by_keys(decl, tree)
    if kept is not None:
        return _of_elements(decl, tree, *kept)
    beyond = uncertified(tree)
    strategy = Strategy.REGIONS if beyond is None else Strategy.WHOLE
    stateful = of_several_facts(tree)
    return Plan(
        name=decl.name,
        key=tree.keys,
        columns=tuple(each for each in tree.columns if each.name != END),
        inputs=_inputs(tree),
        stateful=stateful,
        strategy=strategy,
        small=beyond is None,
        rows_sql=rows_sql(tree, SparkText()),
        freshness=decl.freshness,
        fingerprint=_fingerprint(decl, tree),
        cost=TOUCHED_REGIONS if beyond is None else EVERYTHING,
        notes=(
            *notes_of_steps(tree, beyond, stateful=stateful),
            *(
                ()
                if decl.when is None
                else (f"the table has the rows whose newest values satisfy: {decl.when}",)
            ),
            *(notes_of_end(tree, decl.name, beyond) if decl.final else ()),
        ),
        tree=tree,
        final=decl.final,
    )


def _of_elements(
    decl: ProjectionDecl, tree: Newest, strategy: Strategy, adding: Adding | None
) -> Plan:
    """Compile a query of elements as one step is: without state, by what is new."""
    beyond = uncertified(tree)
    tree = tree if adding is None else adding.tree
    ordered = adding is None or adding.ordered
    return Plan(
        name=decl.name,
        key=tree.keys,
        columns=tuple(each for each in tree.columns if not each.name.startswith(PARTIAL)),
        inputs=_inputs(tree),
        stateful=adding is not None,
        strategy=strategy,
        small=beyond is None,
        rows_sql=(whole if ordered else rows_sql)(tree, SparkText()),
        freshness=decl.freshness,
        fingerprint=_fingerprint(decl, tree),
        cost=NEW_ROWS if adding is None else NEW_ROWS_ADDED,
        notes=notes_of_rows(tree, strategy, beyond, adding),
        tree=tree,
        adding=adding,
    )


def _by_keys(decl: ProjectionDecl, tree: Newest) -> tuple[Strategy, Adding | None] | None:
    """Return how elements of one stream's facts, or groups of them, are kept without state.

    None for a tree that is kept by the regions of its operators.
    """
    nodes = [*walk(tree)]
    alone = all(isinstance(node, Stateless | Grouped | Newest) for node in nodes)
    streams = [scan.kind is InputKind.STREAM for scan in scans(tree)]
    groups = [node for node in nodes if isinstance(node, Grouped | Newest)]
    plain = not (decl.final or decl.when is not None or decl.functions)
    if not (plain and alone and streams == [True] and any(isinstance(n, Exploded) for n in nodes)):
        return None
    if len(groups) == 1 and a_row_for_each_fact(tree):
        return Strategy.NEWEST, None
    adding = adding_of(tree) if len(groups) == 2 else None
    return None if adding is None else (Strategy.KEYS, adding)


def _key(decl: ProjectionDecl, query: ResolvedQuery) -> tuple[Output, ...]:
    outputs = {output.name.lower(): output for output in query.outputs}
    key = []
    for name in decl.key:
        output = outputs.get(name.lower())
        if output is None:
            output = outputs[key_meant(decl, name, {k: each.name for k, each in outputs.items()})]
        if query.type_of(output.expression) in FLOATING:
            raise decl.script.refusal(
                f"key column {name} is a floating-point number",
                at=output.at,
                fix=f"Convert it: CAST(… AS DECIMAL(18, 6)) AS {name}.",
            )
        key.append(output)
    return tuple(key)


def _check_row_key(decl: ProjectionDecl, query: ResolvedQuery, key: tuple[Output, ...]) -> None:
    """The key of single rows must stay the same whatever the joined tables say."""
    driver = query.driver
    for part in key:
        if query.scope.used(part.expression) - {driver.alias}:
            raise _moving_key(decl, query, part)


def _check_grouped_key(decl: ProjectionDecl, query: ResolvedQuery, key: tuple[Output, ...]) -> None:
    """The key must be the groups: every group once, nothing besides, none that moves."""
    groups = {same_text(group): group for group in query.groups}
    start, end = (_window_text(query, name) for name in WINDOW_COLUMNS)
    named = {same_text(part.expression): part for part in key}
    for text, group in groups.items():
        used = query.scope.used(group)
        if text not in named:
            raise _key_differs(decl, query, f"GROUP BY {_short(group)} is not in the key")
        if used - {query.driver.alias}:
            raise _moving_key(decl, query, named[text])
    for text, part in named.items():
        if text not in groups and text not in (start, end):
            raise _key_differs(decl, query, f"key column {part.name} is not in GROUP BY")
    window = query.window
    if window is not None and end not in named:
        if start not in named:
            raise _key_differs(decl, query, f"GROUP BY {window.kind} is not in the key")
        if window.kind is WindowKind.CUMULATE:
            raise _key_differs(decl, query, "windows of CUMULATE differ in window_end")


def _key_differs(decl: ProjectionDecl, query: ResolvedQuery, reason: str) -> Exception:
    texts = {same_text(output.expression): output.name for output in query.outputs}
    wanted = [texts.get(same_text(group), f"{_short(group)} AS …") for group in query.groups]
    if query.window is not None:
        name = "window_end" if query.window.kind is WindowKind.CUMULATE else "window_start"
        wanted.append(texts.get(_window_text(query, name), name))
    return decl.script.refusal(
        f"{reason}: a grouped row is identified by its groups",
        at=decl.key_at,
        fix=f"Write key = '{', '.join(wanted)}' and select these columns.",
    )


def _moving_key(decl: ProjectionDecl, query: ResolvedQuery, part: Output) -> Exception:
    driver = query.driver.alias
    return decl.script.refusal(
        f"key column {part.name} comes from a joined table: a row that changes there would move "
        "to another key",
        at=part.at,
        fix=f"Use columns of {driver} in the key and select {part.name} beside them.",
    )


def _short(node: exp.Expr) -> str:
    return str(node.name) if isinstance(node, exp.Column) else same_text(node)


def _window_text(query: ResolvedQuery, name: str) -> str:
    return f"{spark_name(query.driver.alias)}.{spark_name(WINDOW_COLUMNS[name])}"


def _inputs(tree: Newest) -> tuple[Input, ...]:
    return tuple(Input(kind=each.kind, name=each.name, view=each.view) for each in scans(tree))


def _fingerprint(decl: ProjectionDecl, tree: Newest) -> str:
    read = [(each.kind, each.relation) for each in scans(tree)]
    inputs = [
        # What most inputs lack is left out: their fingerprints stay what they were without it.
        [kind.value, each.name, each.key, each.event_time, *filter(None, [each.declaration])]
        for kind, each in read
    ]
    said = [SEMANTICS, decl.fingerprint, inputs, *([EXACT_DOUBLES] if adds_doubles(tree) else [])]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
