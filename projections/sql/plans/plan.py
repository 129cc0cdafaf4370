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

from kernel.errors import InvalidRequest
from projections.sql.forms.query_steps import several_steps
from projections.sql.operators.inputs import UNKNOWN, look_at_inputs
from projections.sql.operators.presence import of_several_facts
from projections.sql.operators.pruning import pruned
from projections.sql.operators.shape import END, PARTIAL, Input, InputKind, Plan, Strategy
from projections.sql.operators.tree import (
    Exploded,
    Grouped,
    Newest,
    Stateless,
    is_stateful,
    scans,
    walk,
)
from projections.sql.planning.element_keys import check_elements
from projections.sql.planning.map_places import check_maps
from projections.sql.planning.reading import read_tree
from projections.sql.planning.truths import check_truths
from projections.sql.planning.void_columns import check_voids
from projections.sql.plans.adding import Adding, adding_of
from projections.sql.plans.changing_groups import kept_by_groups
from projections.sql.plans.explain import (
    EVERYTHING,
    MERGED,
    NEW_ROWS,
    NEW_ROWS_ADDED,
    TOUCHED_REGIONS,
    cost_of,
    notes_of,
    notes_of_end,
    notes_of_rows,
    notes_of_steps,
)
from projections.sql.plans.fact_keys import check_fact_keys, check_key_types
from projections.sql.plans.key_steps import a_row_for_each_fact, rows_sql
from projections.sql.rendering.batch import whole
from projections.sql.rendering.certified import check_arguments, uncertified
from projections.sql.rendering.spark_text import SparkText
from projections.sql.rendering.totals import adds_doubles
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.words.catalog import Catalog
from projections.sql.words.collected_refusals import collected
from projections.sql.words.places import too_deep

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
    read = read_tree(decl, catalog)
    tree = pruned(read)
    one_step = not (decl.final or decl.when is not None or decl.functions)
    one_step = one_step and not several_steps(decl.query)
    if one_step:
        check_fact_keys(decl, read)
    else:
        check_key_types(decl, tree, lambda _: decl.key_at)
        check_arguments(decl.script, read)
    check_truths(decl.script, read)
    check_elements(decl, tree)
    check_maps(decl, read)
    check_voids(decl, read)
    return _of_one_step(decl, read, tree) if one_step else _of_steps(decl, tree)


def _of_one_step(decl: ProjectionDecl, read: Newest, tree: Newest) -> Plan:
    """Compile a query of one step: it is kept by what is new, or by the keys that this touches."""
    newest = a_row_for_each_fact(tree)
    adding = None if newest else adding_of(tree)
    # What is kept beside the results for adding is none of the query's own expressions.
    beyond = uncertified(tree)
    tree = tree if adding is None else adding.tree
    strategy = Strategy.NEWEST if newest else Strategy.KEYS
    if not (newest or adding or beyond) and kept_by_groups(tree) is not None:
        strategy = Strategy.REGIONS
    return _made(
        decl,
        tree,
        strategy,
        beyond,
        adding,
        stateful=any(map(is_stateful, walk(tree))),
        cost=cost_of(tree, strategy, adding),
        notes=notes_of(decl, read, tree, strategy, beyond, adding),
    )


def _of_steps(decl: ProjectionDecl, tree: Newest) -> Plan:
    """Compile a query of several steps: its tree says how it is kept."""
    beyond = uncertified(tree)
    kept = _by_keys(decl, tree)
    if kept is not None:
        strategy, adding = kept
        tree = tree if adding is None else adding.tree
        return _made(
            decl,
            tree,
            strategy,
            beyond,
            adding,
            stateful=adding is not None,
            cost=NEW_ROWS if adding is None else NEW_ROWS_ADDED,
            notes=notes_of_rows(tree, strategy, beyond, adding),
        )
    stateful = of_several_facts(tree)
    notes = notes_of_steps(tree, beyond, stateful=stateful)
    if decl.when is not None:
        notes += (f"the table has the rows whose newest values satisfy: {decl.when}",)
    if decl.final:
        notes += notes_of_end(tree, decl.name, beyond)
    return _made(
        decl,
        tree,
        Strategy.REGIONS if beyond is None else Strategy.WHOLE,
        beyond,
        None,
        stateful=stateful,
        cost=TOUCHED_REGIONS if beyond is None else EVERYTHING,
        notes=notes,
    )


def _made(
    decl: ProjectionDecl,
    tree: Newest,
    strategy: Strategy,
    beyond: str | None,
    adding: Adding | None,
    *,
    stateful: bool,
    cost: str,
    notes: tuple[str, ...],
) -> Plan:
    ordered = strategy is Strategy.NEWEST or (adding is not None and adding.ordered)
    return Plan(
        name=decl.name,
        key=tree.keys,
        columns=tuple(
            each for each in tree.columns if each.name != END and not each.name.startswith(PARTIAL)
        ),
        inputs=tuple(Input(kind=s.kind, name=s.name, view=s.view) for s in scans(tree)),
        stateful=stateful,
        strategy=strategy,
        small=beyond is None,
        rows_sql=(whole if ordered else rows_sql)(tree, SparkText()),
        freshness=decl.freshness,
        fingerprint=_fingerprint(decl, tree),
        cost=cost,
        notes=notes if strategy is Strategy.WHOLE else (*notes[:1], MERGED, *notes[1:]),
        tree=tree,
        final=decl.final,
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


def _fingerprint(decl: ProjectionDecl, tree: Newest) -> str:
    read = [(each.kind, each.relation) for each in scans(tree)]
    inputs = [
        # What most inputs lack is left out: their fingerprints stay what they were without it.
        [kind.value, each.name, each.key, each.event_time, *filter(None, [each.declaration])]
        for kind, each in read
    ]
    said = [SEMANTICS, decl.fingerprint, inputs, *([EXACT_DOUBLES] if adds_doubles(tree) else [])]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
