"""How a query of one step is kept without state: by the keys that a change may have altered.

A fact belongs to the keys that its own columns say, whatever the tables say that are joined. So the
keys that new facts touch follow from these alone, and those that a changed version touches from the
facts that look it up. The rows of the touched keys are what the whole query gives for their facts,
which are found again where they are stored: nothing has to be held between two runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import assert_never

from sqlglot import exp

from projections.sql.operators.fact_places import apart
from projections.sql.operators.resolving import used
from projections.sql.operators.shape import ORDER
from projections.sql.operators.tree import (
    WINDOW_END,
    WINDOW_START,
    Exploded,
    Final,
    Grouped,
    Join,
    JoinKind,
    Map,
    Match,
    Newest,
    Node,
    Over,
    Scan,
    Sessions,
    UnionAll,
    Windowed,
    scans,
    walk,
)
from projections.sql.rendering.batch import ALL, Parts, listed, names, over_rows, whole
from projections.sql.rendering.dialect import Dialect
from projections.sql.values.expressions import unwrapped

TOUCHED = "touched"
"""The view of the touched keys, each once."""
KEPT_TEXTS = 256
"""Of so many plans texts are kept that every run asks for: each takes milliseconds to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowBounds:
    """What the windows of touched keys say of a stored time: it is in [start, end) of one of them.

    `start` and `end` name the key columns with the bounds; one of them may be missing.
    """

    column: str
    start: str | None
    end: str | None
    size_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A table that facts look a version up in.

    `keys` gives the touched keys of the facts that look up one of the versions in its view.
    `equal` are pairs of a version's column and the fact's stored column that it equals, `time` the
    fact's stored column with the time of which the version is; None for what is not stored so.
    """

    scan: Scan
    keys: Node
    equal: tuple[tuple[str, str], ...]
    time: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySteps:
    """How the touched keys of a query of one step are found and computed again.

    `keys` gives the keys of the facts in the view of `driver`. `equal` are pairs of a key column
    and the fact's stored column that it is.
    """

    tree: Newest
    driver: Scan
    keys: Node
    equal: tuple[tuple[str, str], ...]
    window: WindowBounds | None
    lookups: tuple[Lookup, ...]


@lru_cache(maxsize=KEPT_TEXTS)
def key_steps(tree: Newest) -> KeySteps:
    """Take the tree of a query of one step apart."""
    driver, *tables = scans(tree)
    joins = [node for node in walk(tree) if isinstance(node, Join)]
    wanted = frozenset(tree.keys)
    origins = {name: _origin(tree.input, name) for name in tree.keys}
    return KeySteps(
        tree=tree,
        driver=driver,
        keys=_of_facts(tree.input, wanted, None),
        equal=tuple(
            (name, stored)
            for name, stored in origins.items()
            if stored is not None and stored not in (WINDOW_START, WINDOW_END)
        ),
        window=_window(tree, origins),
        lookups=tuple(
            _lookup(scan, join, _of_facts(tree.input, wanted, join))
            for scan, join in zip(tables, joins, strict=True)
        ),
    )


@lru_cache(maxsize=KEPT_TEXTS)
def keys_sql(keys: Node, key: Sequence[str], dialect: Dialect) -> str:
    """Write the touched keys, each once, from the views of a tree of `KeySteps`."""
    columns = listed(dialect, key)
    known = " AND ".join(f"{dialect.name(name)} IS NOT NULL" for name in key)
    return f"SELECT DISTINCT {columns} FROM ({whole(keys, dialect)}) AS k WHERE {known}"


@lru_cache(maxsize=KEPT_TEXTS)
def facts_sql(steps: KeySteps, dialect: Dialect) -> str:
    """Write the facts in the driver's view that belong to one of the touched keys."""
    same = _same(steps.tree.keys, "k", dialect)
    keys = f"({whole(steps.keys, dialect)}) AS k {dialect.semi} JOIN {TOUCHED} AS t ON {same}"
    return _at_places(steps.driver, keys, dialect)


@lru_cache(maxsize=KEPT_TEXTS)
def meeting_sql(steps: KeySteps, lookup: Lookup, dialect: Dialect) -> str:
    """Write the facts in the driver's view that look up one of the versions in a table's view."""
    return _at_places(steps.driver, f"({whole(lookup.keys, dialect)}) AS k", dialect)


def _at_places(driver: Scan, found: str, dialect: Dialect) -> str:
    """Write the facts of the places in the source's order that are found, and no others."""
    place = " AND ".join(f"f.{name} IS NOT DISTINCT FROM p.{name}" for name in ORDER)
    places = f"SELECT {', '.join(ORDER)} FROM {found}"
    return f"SELECT f.* FROM {driver.view} AS f {dialect.semi} JOIN ({places}) AS p ON {place}"


def a_row_for_each_fact(tree: Newest) -> bool:
    """Say whether each fact gives a row or none by its own columns, whatever it looks up.

    The newest fact of a key then has the key's row, and a row is never taken back. Of rows that
    are alike in time and place it takes all of them to say which one that is.
    """
    for node in walk(tree):
        if isinstance(node, Grouped) or (isinstance(node, Join) and node.kind is not JoinKind.LEFT):
            return False
        if isinstance(node, Map) and node.where and any(isinstance(n, Join) for n in walk(node)):
            return False
    return apart(tree.input, tree.keys)


def rows_sql(tree: Newest, dialect: Dialect, parts: Parts = ALL) -> str:
    """Write all rows of the tree, from the views of its inputs; of nodes in `parts` only these."""
    return f"SELECT {listed(dialect, names(tree))} FROM ({whole(tree, dialect, parts)}) AS y"


@lru_cache(maxsize=KEPT_TEXTS)
def touched_rows_sql(tree: Newest, dialect: Dialect, *, ordered: bool = False) -> str:
    """Write the rows of the touched keys, from views that hold what these need, or more.

    `ordered`: with the columns of `ORDER`.
    """
    columns = listed(dialect, (*names(tree), *(ORDER if ordered else ())), "y")
    same = _same(tree.keys, "y", dialect)
    rows = _of_touched(tree, {name: name for name in tree.keys}, dialect)
    return f"SELECT {columns} FROM ({rows}) AS y {dialect.semi} JOIN {TOUCHED} AS t ON {same}"


def _of_touched(node: Node, keys: Mapping[str, str], dialect: Dialect) -> str:
    """Write all rows of a node, but of its groups those of touched keys alone.

    A fact may be in groups of other keys too, as in the next of hopping windows, of which not all
    facts are there: what is computed of such a group may fail, as a quotient, and of all of them
    would not. `keys` are the key's columns with the node's column that each is.
    """
    match node:
        case Newest():
            return over_rows(node, dialect)(_of_touched(node.input, keys, dialect))
        case Map():
            made = {each.name: unwrapped(each.expression) for each in node.outputs}
            below = {key: made[name] for key, name in keys.items()}
            plain = {key: each.name for key, each in below.items() if isinstance(each, exp.Column)}
            return over_rows(node, dialect)(_of_touched(node.input, plain, dialect))
        case Grouped() if known := {key: n for key, n in keys.items() if n in node.keys}:
            same = " AND ".join(
                f"g.{dialect.name(name)} = t.{dialect.name(key)}" for key, name in known.items()
            )
            # Below the groups: a condition on them is tried before rows of theirs are left out.
            rows = f"SELECT g.* FROM ({whole(node.input, dialect)}) AS g"
            return over_rows(node, dialect)(f"{rows} {dialect.semi} JOIN {TOUCHED} AS t ON {same}")
        case _:
            return whole(node, dialect)


def _same(key: Sequence[str], alias: str, dialect: Dialect) -> str:
    return " AND ".join(f"{alias}.{dialect.name(n)} = t.{dialect.name(n)}" for n in key)


def _of_facts(node: Node, needed: Set[str], met: Join | None) -> Node:
    """Return a node that gives columns which facts have by themselves, for all facts or more.

    Joined tables and conditions on them are left out. Of the table in `met` the versions of its
    view count, whatever they hold, and only facts are given that look one of them up.
    """
    match node:
        case Scan():
            return replace(node, columns=tuple(c for c in node.columns if c.name in needed))
        case Map():
            return _mapped(node, needed, met)
        case Windowed():
            wanted = (needed - {WINDOW_START, WINDOW_END}) | {node.time}
            return replace(node, input=_of_facts(node.input, wanted, met))
        case Grouped():
            return _of_facts(node.input, needed, met)
        case Join() if node is met:
            return _meeting(node, needed)
        case Join():
            return _of_facts(node.left, needed, met)
        case Exploded():
            return _elements(node, needed, met)
        case Newest() | UnionAll() | Sessions() | Over() | Match() | Final():
            raise AssertionError(f"{type(node).__name__} is no part of a query of one step")
        case _:
            assert_never(node)


def _mapped(node: Map, needed: Set[str], met: Join | None) -> Map:
    outputs = tuple(each for each in node.outputs if each.name in needed)
    wanted = set().union(*(used(each.expression) for each in outputs), *map(used, node.where))
    ours = fact_columns(node.input)
    where = tuple(part for part in node.where if used(part) <= ours)
    return replace(
        node, input=_of_facts(node.input, wanted & ours, met), outputs=outputs, where=where
    )


def _elements(node: Exploded, needed: Set[str], met: Join | None) -> Exploded:
    kept = tuple(name for name in node.kept if name in needed)
    return replace(
        node,
        input=_of_facts(node.input, {*kept, node.values}, met),
        kept=kept,
        place=node.place if node.place in needed else None,
        elements=tuple(each for each in node.elements if each.name in needed),
    )


def fact_columns(node: Node) -> Set[str]:
    """Return the columns of a node that do not depend on tables or on other facts."""
    match node:
        case Grouped():
            return {*node.keys}
        case Windowed():
            return {*fact_columns(node.input), WINDOW_START, WINDOW_END}
        case Join():
            return fact_columns(node.left)
        case Map():
            below = fact_columns(node.input)
            return {each.name for each in node.outputs if used(each.expression) <= below}
        case _:
            return {each.name for each in node.columns}


def _meeting(node: Join, needed: Set[str]) -> Join:
    """Return the facts that look up one of the versions in the joined table's view."""
    wanted = set().union(*map(used, node.as_of))
    ours, theirs = ({n for pair in node.pairs for n in pair[i : i + 1]} for i in (0, 1))
    left = _of_facts(node.left, needed | ours | (wanted & fact_columns(node.left)), None)
    right = node.right
    assert isinstance(right, Map), "the rows of a joined table are mapped"
    return Join(
        left=left,
        right=replace(
            right,
            outputs=tuple(each for each in right.outputs if each.name in wanted | theirs),
            # A version that does not satisfy it now may have done so before.
            where=(),
        ),
        kind=JoinKind.SEMI,
        pairs=node.pairs,
        rest=node.as_of,
        timed=False,
        as_of=node.as_of,
    )


def _lookup(scan: Scan, join: Join, keys: Node) -> Lookup:
    equal = []
    for ours, theirs in join.pairs:
        fact, version = _origin(join.left, ours), _origin(join.right, theirs)
        if fact is not None and version is not None:
            equal.append((version, fact))
    begins = join.as_of[0] if join.as_of else None
    time = None if begins is None else unwrapped(begins.expression)
    stored = _origin(join.left, time.name) if isinstance(time, exp.Column) else None
    return Lookup(scan=scan, keys=keys, equal=tuple(equal), time=stored)


def _window(tree: Newest, origins: dict[str, str | None]) -> WindowBounds | None:
    for node in walk(tree):
        if isinstance(node, Windowed):
            column = _origin(node.input, node.time)
            named = {stored: name for name, stored in origins.items() if stored is not None}
            start, end = named.get(WINDOW_START), named.get(WINDOW_END)
            if column is not None and (start or end):
                return WindowBounds(column=column, start=start, end=end, size_us=node.size_us)
    return None


def _origin(node: Node, name: str) -> str | None:
    """Return the column of the input that a column is as it is, or which bound of a window."""
    match node:
        case Scan():
            return name
        case Map():
            made = next(each.expression for each in node.outputs if each.name == name)
            made = unwrapped(made)
            return _origin(node.input, made.name) if isinstance(made, exp.Column) else None
        case Windowed() if name in (WINDOW_START, WINDOW_END):
            return name
        case Windowed():
            return _origin(node.input, name)
        case Exploded() if name in node.kept:
            return _origin(node.input, name)
        case Grouped() if name in node.keys:
            return _origin(node.input, name)
        case Join():
            left = name in {each.name for each in node.left.columns}
            return _origin(node.left if left else node.right, name)
        case _:
            return None
