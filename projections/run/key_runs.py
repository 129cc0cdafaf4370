"""Runs of projections of one step: the rows of the keys that a change may have altered.

Nothing is held from one run to the next. What is new says which keys are touched; the facts of
these are read again where they are stored, by file statistics and by the values of the keys; and
the query gives their rows. A process that starts has nothing to read first, and there is no state
that needs a bound.

Where facts can be added to what the table has of their groups (`plans.adding`), the new
facts are enough. Up to which epoch a row has its facts follows from the commit that it is in. A row
that was written in a later epoch than the table's own, as a copy of another table may be, is
computed anew, and so are all touched rows when a version changed that facts look up.

Where each fact gives a row by itself, whatever it looks up, the newest row of each key needs less:
that of the new facts and of those whose version changed, with the columns of `ORDER`, which a merge
compares with those of the stored row.

The texts are the same for every engine: DuckDB in this process, and Spark where an expression is
Spark's alone or a change needs more rows than this process may hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernel.clock import UNIX_EPOCH
from kernel.positions import Epoch
from lake.ranges import Among, Condition, Range, Spans
from lake.writer import UPSERT, upserts_and_deletes, with_op
from pipeline.typed.columns import EPOCH
from projections.run.database import ORDER_TYPES, arrow_type
from projections.sql.operators.shape import ORDER, InputKind, Plan, Strategy
from projections.sql.operators.tree import Newest, Node, Scan, scans
from projections.sql.plans.adding import added_sql
from projections.sql.plans.key_steps import (
    KEPT_TEXTS,
    KeySteps,
    Lookup,
    facts_sql,
    key_steps,
    keys_sql,
    meeting_sql,
    rows_sql,
    touched_rows_sql,
)
from projections.sql.rendering.batch import ALL, Parts, listed, whole
from projections.sql.rendering.dialect import Dialect
from projections.sql.words.catalog import Column

MOST_VALUES = 2_000
"""So many values of a key are looked for by themselves; more are found among all rows."""
MOST_SPANS = 16
"""Touched windows are read in so many stretches of time, cut where the widest gaps are."""
KEPT_BY_KEYS = (Strategy.NEWEST, Strategy.KEYS)
"""Strategies of plans whose runs are computed here."""


class Engine(Protocol):
    """Computes queries over views of one plan's inputs."""

    @property
    def dialect(self) -> Dialect:
        """The words of its queries."""
        ...

    def facts(
        self, scan: Scan, conditions: Sequence[Condition], *, keys: pa.Table | None = None
    ) -> None:
        """Make the view of a stream's facts that meet all conditions; there may be others.

        `keys`: those are enough that have one of these, which are columns of the facts: the engine
        may find them by that, in place of the conditions.
        """
        ...

    def versions(self, scan: Scan, conditions: Sequence[Condition], *, alike: bool = False) -> None:
        """Make the view of a history's versions that meet all conditions; there may be others.

        `alike`: those of deleted rows look as any other.
        """
        ...

    def touch(self, keys: pa.Table) -> None:
        """Make the view of the touched keys."""
        ...

    def given(
        self, keys: pa.Table, conditions: Sequence[Condition], columns: Sequence[Column]
    ) -> Epoch | None:
        """Make the view `GIVEN` of the rows that the projection's table has of some keys.

        The rows of all keys meet the conditions. Return the newest epoch that one of them was
        written in, 0 for none; None where the table has no such columns.
        """
        ...

    def narrow(self, scan: Scan, query: str) -> None:
        """Put the rows of a query over a view into its place, where that spares work."""
        ...

    def values(self, scan: Scan, columns: Sequence[str]) -> pa.Table | None:
        """Return the values in columns of a view, each row once; None where that costs too much."""
        ...

    def rows(self, query: str, columns: Sequence[Column]) -> pa.Table:
        """Return what a query gives: `columns`, under their types where these are certain."""
        ...


def changed_rows(engine: Engine, plan: Plan, after: Epoch, up_to: Epoch) -> pa.Table:
    """Return the rows to upsert and the keys to delete for the epochs (after, up_to].

    Rows of a `NEWEST` plan have the columns of `ORDER` and replace older ones alone.
    """
    steps = key_steps(plan.tree)
    engine.facts(steps.driver, [_came(after, up_to)])
    if plan.strategy is Strategy.NEWEST:
        return with_op(_newest_of_changed(engine, plan, steps, after, up_to), UPSERT)
    by_facts, *by_versions = _touched(engine, plan, steps, after, up_to)
    touched = by_facts
    if by_versions:
        touched = pa.concat_tables([by_facts, *by_versions]).group_by([*plan.key]).aggregate([])
    if not touched.num_rows:
        none = f"{all_sql(engine.dialect, plan)} LIMIT 0"
        return with_op(engine.rows(none, stored_columns(plan)), UPSERT)
    added = None if by_versions else _added(engine, plan, steps, touched, after)
    if added is not None:
        return with_op(added, UPSERT)
    engine.touch(touched)
    conditions = [_came(Epoch(0), up_to), *_of_keys(steps, touched)]
    engine.facts(steps.driver, conditions, keys=_own_keys(steps.driver, steps.equal, touched))
    if not _are_exact(steps, touched):
        engine.narrow(steps.driver, facts_sql(steps, engine.dialect))
    _look_up(engine, steps)
    query = touched_rows_sql(plan.tree, engine.dialect, ordered=plan.ordered)
    rows = engine.rows(query, stored_columns(plan))
    gone = touched.join(rows.select(list(plan.key)), list(plan.key), join_type="left anti")
    return upserts_and_deletes(rows, gone)


def all_rows(engine: Engine, plan: Plan, up_to: Epoch) -> pa.Table:
    """Return all rows as they are at an epoch; those of an `ordered` plan with `ORDER`."""
    for scan in scans(plan.tree):
        if scan.kind is InputKind.STREAM:
            engine.facts(scan, [_came(Epoch(0), up_to)])
        else:
            engine.versions(scan, [])
    return engine.rows(all_sql(engine.dialect, plan), stored_columns(plan))


def all_sql(dialect: Dialect, plan: Plan, parts: Parts = ALL) -> str:
    """Write all rows, or `parts`, as the table has them, from the views of the inputs."""
    if not parts:
        return _all_sql(dialect, plan.tree, plan.ordered)
    return (whole if plan.ordered else rows_sql)(plan.tree, dialect, parts)


@lru_cache(maxsize=KEPT_TEXTS)
def _all_sql(dialect: Dialect, tree: Newest, ordered: bool) -> str:
    """Write all rows of a tree. Plans may be equal whose inputs have columns of other types."""
    return (whole if ordered else rows_sql)(tree, dialect)


def stored_columns(plan: Plan) -> tuple[Column, ...]:
    """Return the columns of the table, but for the epoch."""
    order = (Column(name=name, type=ORDER_TYPES[name]) for name in ORDER)
    return (*plan.tree.columns, *(order if plan.ordered else ()))


def _added(
    engine: Engine, plan: Plan, steps: KeySteps, touched: pa.Table, after: Epoch
) -> pa.Table | None:
    """Return the rows of touched keys that are new facts added to those that the table has.

    None where they have to be computed anew. The view of the driver holds the new facts.
    """
    adding = plan.adding
    if adding is None or not adding.known_by(engine.dialect):
        return None
    written = engine.given(touched, _of_rows(plan, touched), stored_columns(plan))
    if written is None or written > after:
        return None
    _look_up(engine, steps)
    columns = stored_columns(plan)
    names = listed(engine.dialect, [each.name for each in columns])
    query = f"SELECT {names} FROM ({added_sql(adding, engine.dialect)}) AS a"
    return engine.rows(query, columns)


def _of_rows(plan: Plan, touched: pa.Table) -> list[Condition]:
    """Return conditions that the rows of touched keys meet."""
    conditions: list[Condition] = []
    for each in (column for column in plan.columns if column.name in plan.key):
        if each.type == "TIMESTAMP":
            ends = pc.add(touched[each.name], pa.scalar(1, pa.duration("us")))
            conditions.append(_spans(each.name, touched[each.name], ends))
        else:
            conditions += _among(each.name, pc.unique(touched[each.name]))
    return conditions


def _newest_of_changed(
    engine: Engine, plan: Plan, steps: KeySteps, after: Epoch, up_to: Epoch
) -> pa.Table:
    """Return the newest row of each key among those of new facts and of facts that look up a
    version which changed. The view of the driver holds the new facts.
    """
    _look_up(engine, steps)
    rows = [engine.rows(all_sql(engine.dialect, plan), stored_columns(plan))]
    for lookup in steps.lookups:
        if _facts_near_changes(engine, steps, lookup, after, up_to):
            engine.narrow(steps.driver, meeting_sql(steps, lookup, engine.dialect))
            _look_up(engine, steps)
            rows.append(engine.rows(all_sql(engine.dialect, plan), stored_columns(plan)))
    if len(rows) == 1:
        return rows[0]
    both = pa.concat_tables(rows)
    newest = both.sort_by([(name, "descending") for name in ORDER])
    placed = newest.append_column("__place", pa.array(range(newest.num_rows), pa.int64()))
    firsts = placed.group_by(list(plan.key)).aggregate([("__place", "min")])
    return newest.take(firsts["__place_min"])


def _look_up(engine: Engine, steps: KeySteps) -> None:
    """Make the views of the versions that the facts in the driver's view look up."""
    for lookup in steps.lookups:
        engine.versions(lookup.scan, _of_facts(engine, steps, lookup))


def _came(after: Epoch, up_to: Epoch) -> Range:
    """Return the condition that rows came in the epochs (after, up_to]."""
    return Range(column=EPOCH, lower=after + 1, upper=up_to + 1)


def _touched(
    engine: Engine, plan: Plan, steps: KeySteps, after: Epoch, up_to: Epoch
) -> list[pa.Table]:
    """Return the keys that new facts touch, and those that the changed versions of each table do.

    Of a table without a changed version there are none. The view of the driver holds the new
    facts, and goes on to do so where no version changed.
    """
    columns = [each for each in plan.columns if each.name in plan.key]

    def keys(of: Node) -> pa.Table:
        return engine.rows(keys_sql(of, plan.key, engine.dialect), columns)

    found = [keys(steps.keys)]
    for lookup in steps.lookups:
        if _facts_near_changes(engine, steps, lookup, after, up_to):
            found.append(keys(lookup.keys))
    return [each.select(list(plan.key)) for each in found]


def _facts_near_changes(
    engine: Engine, steps: KeySteps, lookup: Lookup, after: Epoch, up_to: Epoch
) -> bool:
    """Make the views of the versions that changed in (after, up_to] and of the facts that may look
    one of them up; say whether any did.
    """
    new = Range(column=EPOCH, lower=after + 1, upper=None)
    engine.versions(lookup.scan, [new], alike=True)
    held = [each for each in lookup.scan.columns if each.name in ("valid_from", "valid_to")]
    bounds = ", ".join(each.name for each in held)
    stretches = engine.rows(f"SELECT DISTINCT {bounds} FROM {lookup.scan.view}", held)
    if not stretches.num_rows:
        return False
    near: list[Condition] = [_came(Epoch(0), up_to)]
    if lookup.time is not None and _is_moment(steps.driver, lookup.time):
        near.append(_spans(lookup.time, stretches["valid_from"], stretches["valid_to"]))
    found = _values(engine, lookup.scan, [version for version, _ in lookup.equal])
    keys = None
    if found is not None:
        for version, fact in lookup.equal:
            near += _among(fact, pc.unique(found[version]))
        keys = _own_keys(steps.driver, lookup.equal, found)
    engine.facts(steps.driver, near, keys=keys)
    return True


def _values(engine: Engine, scan: Scan, columns: Sequence[str]) -> pa.Table | None:
    """Return the values in some columns of a view, each row once; None where none are told."""
    return engine.values(scan, [*dict.fromkeys(columns)]) if columns else None


def _own_keys(driver: Scan, equal: Sequence[tuple[str, str]], found: pa.Table) -> pa.Table | None:
    """Return `found` under the facts' names: of each pair its column is the first, the fact's the
    second. None where nothing, or nothing of the facts' own types, is equated.
    """
    own = {fact: name for name, fact in reversed(equal)}
    kinds = {each.name: arrow_type(each) for each in driver.columns}
    alike = [fact for fact, name in own.items() if kinds[fact] == found.schema.field(name).type]
    columns = {fact: found[own[fact]] for fact in sorted(alike)}
    return pa.table(columns) if columns else None


def _of_keys(steps: KeySteps, touched: pa.Table) -> list[Condition]:
    """Return conditions that the facts of the touched keys meet."""
    conditions: list[Condition] = []
    for key, fact in steps.equal:
        conditions += _among(fact, pc.unique(touched[key]))
    window = steps.window
    if window is None or not _is_moment(steps.driver, window.column):
        return conditions
    size = pa.scalar(window.size_us, pa.duration("us"))
    if window.start is not None:
        start = touched[window.start]
        end = touched[window.end] if window.end is not None else pc.add(start, size)
    else:
        assert window.end is not None, "one of the bounds is in the key"
        end = touched[window.end]
        start = pc.subtract(end, size)
    return [*conditions, _spans(window.column, start, end)]


def _are_exact(steps: KeySteps, touched: pa.Table) -> bool:
    """Say whether facts that meet the conditions of `_of_keys` are of no other keys.

    They are of any key that has one of the touched values in each of its columns.
    """
    named = dict(steps.equal)
    if steps.window is not None and _is_moment(steps.driver, steps.window.column):
        bounds = (steps.window.start, steps.window.end)
        named |= {bound: steps.window.column for bound in bounds if bound is not None}
    counts = [len(pc.unique(touched[key])) for key in touched.schema.names]
    known = named.keys() >= {*touched.schema.names} and max(counts) <= MOST_VALUES
    return known and touched.num_rows == math.prod(counts)


def _of_facts(engine: Engine, steps: KeySteps, lookup: Lookup) -> list[Condition]:
    """Return conditions that the versions meet which the facts in the driver's view look up."""
    conditions: list[Condition] = []
    alike = [
        (version, fact)
        for version, fact in lookup.equal
        if _type(steps.driver, fact) == _type(lookup.scan, version)
    ]
    found = _values(engine, steps.driver, [fact for _, fact in alike])
    if found is not None:
        for version, fact in alike:
            conditions += _among(version, pc.unique(found[fact]))
    return conditions


def _among(column: str, values: pa.Array | pa.ChunkedArray) -> list[Condition]:
    if len(values) > MOST_VALUES:
        return []
    found = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return [Among(column=column, values=found.drop_null())]


def _spans(column: str, start: pa.ChunkedArray, end: pa.ChunkedArray) -> Spans:
    """Return the stretches of time [start, end) together; a null end is open.

    The set of them, not the time from the first to the last: one very late row widens nothing.
    """
    low = start.cast(pa.int64()).to_numpy()
    high = pc.fill_null(end.cast(pa.int64()), 2**63 - 1).to_numpy()
    order = np.argsort(low, kind="stable")
    low, high = low[order], np.maximum.accumulate(high[order])
    # A stretch that begins behind the end of all before it is apart from them.
    gaps = low[1:] - high[:-1]
    apart = np.flatnonzero(low[1:] > high[:-1])
    if len(apart) >= MOST_SPANS:
        apart = np.sort(apart[np.argsort(gaps[apart])[1 - MOST_SPANS :]])
    firsts, lasts = np.append(0, apart + 1), np.append(apart, len(low) - 1)
    ends = zip(low[firsts].tolist(), high[lasts].tolist(), strict=True)
    return Spans(column=column, spans=tuple((_moment(a), _moment(b)) for a, b in ends))


def _moment(micros: int) -> datetime | None:
    """Return a moment; None for one beyond the calendar, which bounds nothing."""
    try:
        return UNIX_EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return None


def _is_moment(scan: Scan, column: str) -> bool:
    return _type(scan, column) == "TIMESTAMP"


def _type(scan: Scan, column: str) -> str:
    return next((each.type for each in scan.columns if each.name == column), "")
