"""Values stay with their columns, whatever DDL does to names that differ in letter case only."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pipeline.ddl.steps import Added, Dropped, Renamed, Step, apply, in_turn, touches_rows
from schemas.lake_columns import captured_columns, numbered, numbers

Columns = dict[int, str]
"""Names in the source, by attnum."""
NAMES = st.sampled_from(["n", "N", "n__2", "N__2", "_epoch", "_EPOCH", "m"])
DDL = st.tuples(st.sampled_from(["add", "drop", "rename"]), NAMES, st.integers(0, 5))


def called(columns: Columns) -> Columns:
    """Return what the lake calls columns."""
    names = list(columns.values())
    number = numbers(names)
    lake = captured_columns([numbered(*each) for each in zip(names, number, strict=True)])
    return dict(zip(columns, lake, strict=True))


def altered(columns: Columns, change: tuple[str, str, int], attnum: int) -> Columns:
    """Return the columns behind a change; the same where PostgreSQL would refuse it."""
    what, name, place = change
    some = sorted(columns)[place % len(columns)] if columns else 0
    if what == "drop":
        return {number: own for number, own in columns.items() if number != some}
    if name in columns.values():
        return columns
    if what == "add":
        return columns | {attnum: name}
    return {n: name if n == some else own for n, own in columns.items()}


def steps_of(before: Columns, after: Columns) -> list[Step]:
    one, other = called(before), called(after)
    steps: list[Step] = []
    for attnum, name in one.items():
        if attnum not in other:
            steps.append(Dropped(name))
        elif other[attnum] != name:
            steps.append(Renamed(name, other[attnum]))
    fresh = [attnum for attnum in other if attnum not in one]
    return [*steps, *(Added(other[attnum], pa.int64(), attnum) for attnum in fresh)]


@given(st.lists(DDL, max_size=12))
def test_each_column_keeps_its_values_and_no_two_have_one_name(
    changes: list[tuple[str, str, int]],
) -> None:
    columns: Columns = {1: "n", 2: "N"}
    rows = pa.table({name: [attnum] for attnum, name in called(columns).items()})
    for attnum, change in enumerate(changes, 3):
        after = altered(columns, change, attnum)
        steps = in_turn(steps_of(columns, after))
        before, rows, columns = rows, apply(rows, steps), after
        wanted = {name: [number] for number, name in called(columns).items()}
        assert rows.select(list(wanted)).to_pydict() == wanted
        assert len({name.lower() for name in rows.schema.names}) == rows.num_columns
        if set(before.schema.names) - set(rows.schema.names):
            assert touches_rows(steps, before.schema)


def test_columns_that_change_places_keep_their_values() -> None:
    rows = pa.table({"a": [1], "b": [2]})
    turned = apply(rows, in_turn([Renamed("a", "b"), Renamed("b", "A")]))
    assert turned.to_pydict() == {"b": [1], "A": [2]}
