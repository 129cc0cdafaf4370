"""How typed tables follow DDL: facts go on under any change and keep the values they came with.

A renamed column is renamed for older facts, too, and a widened one widened; a default that the
source gave to older rows was no part of older facts. Where no type holds old and new values, the
old ones are set aside under the column's name and type.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.ddl.evolution import (
    Shape,
    Told,
    came_untold,
    first_shape,
    known_columns,
    shapes_of,
    stored_type,
)
from pipeline.ddl.held_tables import Hold
from pipeline.ddl.steps import (
    Added,
    Dropped,
    Evolution,
    Order,
    Renamed,
    Retyped,
    SetAside,
    Step,
    in_turn,
    shape_after,
)
from schemas.lake_columns import folded
from schemas.pg_types import lake_type
from schemas.registry import SchemaLookup
from schemas.widening import common_type, followed_type


def plan_facts(
    told: Sequence[Told],
    rows: pa.Table,
    stored: pa.Schema | None,
    schemas: SchemaLookup,
    copied: tuple[Order, pa.Schema] | None = None,
) -> Evolution:
    """Plan how a typed table takes log rows in; arguments as those of `evolution.plan`.

    A table that is not there yet may begin with rows that were `copied`: their place and columns.
    """
    shape, begin = first_shape(rows, stored, schemas)
    if stored is None and copied is not None and (not shape or copied[0] < begin):
        begin, columns = copied
        shape = {item.name: item.type for item in columns}
    steps, shape = _steps(told, shape, begin)
    return _fitted(steps, rows, shape, schemas)


def plan_told(told: Sequence[Told], stored: pa.Schema) -> Evolution:
    """Plan what messages alone make of columns."""
    shape = {item.name: item.type for item in stored}
    steps, _ = _steps(told, shape, (-1, -1))
    return Evolution(steps=tuple(steps))


def _steps(
    told: Sequence[Told], shape: Shape, begin: Order
) -> tuple[list[tuple[Order, tuple[Step, ...]]], Shape]:
    """Follow the messages from a place on; return the steps, and the columns in the end."""
    steps: list[tuple[Order, tuple[Step, ...]]] = []
    for message in sorted(told, key=lambda message: message.order):
        if message.order < begin or message.hold is not None or not shape:
            continue
        found = _followed(message, shape)
        if found:
            steps.append((message.order, found))
            shape = shape_after(shape, found)
    return steps, shape


def _followed(message: Told, shape: Shape) -> tuple[Step, ...]:
    before = known_columns(message, shape)
    if isinstance(before, Hold):
        return ()
    steps: list[Step] = []
    after = message.change.by_attnum()
    for attnum, old in before.items():
        new = after.get(attnum)
        if old.name not in shape:
            continue
        if new is None:
            steps.append(Dropped(old.name))
            continue
        if old.name != new.name and came_untold(message, new.name, shape):
            continue  # Both are there: one has ended.
        kind, stored = followed_type(old.column, new.column), shape[old.name]
        if old.name != new.name:
            steps.append(Renamed(old.name, new.name))
        target = None if kind is None else stored_type(old, kind, stored)
        own = common_type(stored, lake_type(old.column)) == stored
        if target is None and own and stored != lake_type(new.column):
            steps.extend(_set_aside(new.name, stored))
        elif target is not None and target != stored:
            steps.append(Retyped(new.name, target))
    fresh = after.items() if message.before is not None else ()
    added = [column for attnum, column in fresh if attnum not in before]
    known = set(shape_after(shape, in_turn(steps)))
    # A column that was dropped goes on in one of its name, whatever its letter case.
    gone = {folded(name): name for name in known - {c.name for c in after.values()}}
    for column in added:
        if folded(column.name) in gone and column.name not in known:
            steps.append(Renamed(gone[folded(column.name)], column.name))
        elif column.name not in known:
            steps.append(Added(column.name, lake_type(column.column)))
    return in_turn(steps)


def _fitted(
    steps: list[tuple[Order, tuple[Step, ...]]],
    rows: pa.Table,
    shape: Shape,
    schemas: SchemaLookup,
) -> Evolution:
    """Bring rows to common types; without messages that is all that is known of a new type."""
    types, needed = dict(shape), Shape()
    for order, own in shapes_of(rows, schemas):
        passed = tuple(step for at, done in steps if at > order for step in done)
        for name, kind in shape_after(own, passed).items():
            known = types.setdefault(name, kind)
            common = common_type(known, kind)
            if common is None:
                high, low = order
                place = (high, low - 1), _set_aside(name, known)
                steps = sorted([*steps, place], key=lambda step: step[0])
                needed.pop(name, None)
                types[name] = kind
            elif known != common or kind != common:
                needed[name] = types[name] = common
    return Evolution(steps=tuple(steps), types=needed)


def _set_aside(name: str, stored: pa.DataType) -> tuple[Step, ...]:
    """Set a column aside as it is stored: older rows of the source may be of a narrower type."""
    return Retyped(name, stored), SetAside(name, stored)
