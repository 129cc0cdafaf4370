"""Steps from one set of columns to the next, applied to rows that were written before them.

One function for all rows: images on their way to a table, and those that a table holds already.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.ddl.unchanged_values import UNCHANGED
from schemas.lake_columns import TWIN, folded
from schemas.pg_exact import EXACT, renamed_exact

Order = tuple[int, int]
"""Place in a source's stream: high and low, see `pipeline.order`."""


@dataclass(frozen=True, slots=True)
class Added:
    """A column that older rows have `value` in (None: null)."""

    name: str
    type: pa.DataType
    value: object = None


@dataclass(frozen=True, slots=True)
class Renamed:
    """A column that keeps its values under another name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """A column that later rows do not have. Older ones keep their values."""

    name: str


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column whose values are all kept exactly by another type."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Relabelled:
    """A text column in which some values are called otherwise now."""

    name: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SetAside:
    """A column of `type` whose later values are of a type that cannot hold it.

    Its values go on under `aside`; the column's own name is free for the later ones.
    """

    name: str
    type: pa.DataType

    @property
    def aside(self) -> str:
        """Return the name that the older values have from then on."""
        return f"{self.name}__{re.sub(r'[^a-z0-9]+', '_', str(self.type)).strip('_')}"


Step = Added | Renamed | Dropped | Retyped | Relabelled | SetAside


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """What happened to a table's columns, and where in the stream. Picklable.

    `types` are the types that all rows have in the end, where rows differ.
    """

    steps: tuple[tuple[Order, tuple[Step, ...]], ...] = ()
    types: Mapping[str, pa.DataType] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.steps or self.types)

    def all_steps(self, *, only: Container[Order] | None = None) -> tuple[Step, ...]:
        """Return every step in order, for rows that were there before all of them.

        `only` names the places whose steps count.
        """
        of_changes = [
            step for order, steps in self.steps if only is None or order in only for step in steps
        ]
        return (*of_changes, *(Retyped(name, kind) for name, kind in self.types.items()))

    def after(self, order: Order) -> tuple[Step, ...]:
        """Return the steps behind a place, in order: those that a row of that place lacks."""
        return self.all_steps(only=[at for at, _ in self.steps if at >= order])

    def caught_up(self, rows: pa.Table) -> pa.Table:
        """Bring rows that were there before all steps to the last columns."""
        return apply(rows, self.all_steps())

    def names_after(self, names: Iterable[str], order: Order) -> tuple[str, ...]:
        """Return what columns of a row at `order` are called in the end."""
        found = list(names)
        later = (step for at, steps in self.steps if at > order for step in steps)
        for step in later:
            if isinstance(step, Renamed):
                found = [step.new if name == step.old else name for name in found]
        return tuple(found)

    def carried(self, frame: pa.Table, high: str, low: str) -> pa.Table:
        """Bring image rows to the last columns; `high` and `low` name the columns of their order.

        Order of the rows and further columns stay.
        """
        if not self or frame.num_rows == 0:
            return frame
        places = list(zip(frame[high].to_pylist(), frame[low].to_pylist(), strict=True))
        parts: dict[int, list[int]] = {}
        for row, place in enumerate(places):
            passed = sum(1 for order, _ in self.steps if order < place)
            parts.setdefault(passed, []).append(row)
        done = [
            apply(
                frame.take(rows),
                (
                    *(step for _, steps in self.steps[passed:] for step in steps),
                    *(Retyped(name, kind) for name, kind in self.types.items()),
                ),
            )
            for passed, rows in sorted(parts.items())
        ]
        return done[0] if len(done) == 1 else pa.concat_tables(done, promote_options="permissive")


NOTHING = Evolution()


def read_as(kind: pa.DataType) -> pc.CastOptions:
    """Return how values are read as a wider type: a whole number as the double next to it."""
    return pc.CastOptions(target_type=kind, allow_float_truncate=True)


def apply(rows: pa.Table, steps: Iterable[Step]) -> pa.Table:
    """Apply steps to rows that were written before them."""
    for step in steps:
        match step:
            case Added(name, kind, value):
                # `repeat` refuses to make no lists.
                n = rows.num_rows
                column = pa.repeat(pa.scalar(value, kind), n) if n else pa.array([], kind)
                # A dropped column may have had that name but for letter case.
                before = _called(rows, name)
                rows = marks_called(rows, dict.fromkeys(before))
                rows = rows.drop_columns([each for each in before if each != name])
                rows = _put(rows, name, pa.chunked_array([column]))
            case Renamed(old, new):
                rows = _renamed(rows, old, new)
            case Dropped():
                pass
            case Retyped(name, kind):
                if name in rows.schema.names and rows.schema.field(name).type != kind:
                    rows = _put(rows, name, rows[name].cast(options=read_as(kind)))
            case Relabelled(name, labels):
                if name in rows.schema.names:
                    rows = _put(rows, name, _relabelled(rows[name], labels))
            case SetAside(name, kind):
                if name in rows.schema.names and rows.schema.field(name).type == kind:
                    rows = _set_aside(rows, name, step.aside)
            case _:
                assert_never(step)
    return rows


def shape_after(shape: Mapping[str, pa.DataType], steps: Sequence[Step]) -> dict[str, pa.DataType]:
    """Return the columns that rows have after the steps, dropped ones included."""
    empty = pa.schema(list(shape.items())).empty_table()
    return {item.name: item.type for item in apply(empty, steps).schema}


def touches_rows(steps: Iterable[Step], stored: pa.Schema) -> bool:
    """Whether rows of these columns must be written anew, or only columns of nulls be added."""
    rows = stored.empty_table()
    for step in steps:
        match step:
            case Added(name, _, value) if value is not None or _called(rows.schema, name):
                return True
            case Renamed(name) | Relabelled(name) if name in rows.schema.names:
                return True
            case Retyped(name, kind) if name in rows.schema.names:
                if rows.schema.field(name).type != kind:
                    return True
            case SetAside(name, kind) if name in rows.schema.names:
                if rows.schema.field(name).type == kind:
                    return True
            case _:
                rows = apply(rows, [step])
    return False


def in_turn(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Put the renames of one change in front, and each behind the one that frees its name.

    All other steps name columns as they are called behind the change. Letter case says nothing.
    """
    others = [step for step in steps if not isinstance(step, Renamed)]
    waiting = [step for step in steps if isinstance(step, Renamed)]
    done: list[Step] = []
    while waiting:
        taken = Counter(folded(step.old) for step in waiting)
        free = [s for s in waiting if taken[folded(s.new)] <= (folded(s.old) == folded(s.new))]
        if free:
            done.append(free[0])
            waiting.remove(free[0])
        else:
            # They change places: one of them makes room.
            first, *waiting = waiting
            done.append(Renamed(first.old, f"{TWIN}{first.old}"))
            waiting.append(Renamed(f"{TWIN}{first.old}", first.new))
    return (*done, *others)


def _called(rows: pa.Table | pa.Schema, name: str) -> list[str]:
    """Return the columns of that name, whatever their letter case: a lake has one of them."""
    schema = rows if isinstance(rows, pa.Schema) else rows.schema
    return [each for each in schema.names if folded(each) == folded(name)]


def _put(rows: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    place = rows.schema.get_field_index(name)
    item = pa.field(name, column.type)
    return rows.append_column(item, column) if place < 0 else rows.set_column(place, item, column)


def _renamed(rows: pa.Table, old: str, new: str) -> pa.Table:
    if old not in rows.schema.names:
        return rows
    # A dropped column had that name before: its values are in the log.
    gone = [name for name in _called(rows, new) if name != old]
    rows = marks_called(rows, {**dict.fromkeys(gone), old: new})
    return rows.drop_columns(gone).rename_columns({old: new})


def _set_aside(rows: pa.Table, name: str, aside: str) -> pa.Table:
    rows = marks_called(rows, {name: aside})
    values = rows[name]
    if aside in rows.schema.names:
        values = pc.coalesce(rows[aside], values)
    return _put(rows.drop_columns([name]), aside, values)


def marks_called(rows: pa.Table, called: Mapping[str, str | None]) -> pa.Table:
    """Let what marks values call their columns as these are called from now on.

    None: the values are gone. `_exact` has texts of some, `__unchanged` names those left alone.
    """
    if UNCHANGED in rows.schema.names and called:
        named = [
            names and [now for name in names if (now := called.get(name, name)) is not None]
            for names in rows[UNCHANGED].to_pylist()
        ]
        rows = _put(rows, UNCHANGED, pa.chunked_array([pa.array(named, pa.list_(pa.string()))]))
    if EXACT not in rows.schema.names or not called:
        return rows
    exact = [text and renamed_exact(text, called) for text in rows[EXACT].to_pylist()]
    return _put(rows, EXACT, pa.chunked_array([pa.array(exact, pa.string())]))


def _relabelled(column: pa.ChunkedArray, labels: Mapping[str, str]) -> pa.ChunkedArray:
    place = pc.index_in(column, value_set=pa.array(list(labels), pa.string()))
    fresh = pa.array(list(labels.values()), pa.string())
    return pc.coalesce(pc.take(fresh, place), column)
