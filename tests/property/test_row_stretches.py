"""Rows by their places are those that Arrow takes one by one, whatever lies together."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lake import stretches
from lake.stretches import in_order, rows_at

PLACES = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]


@pytest.fixture(autouse=True, scope="module")
def short() -> None:
    """Take stretches of few rows for long ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretches, "LONG", 3)


def chunked(rows: pa.Table, sizes: list[int]) -> pa.Table:
    parts, first = [rows.slice(0, 0)], 0
    for size in [*sizes, rows.num_rows]:
        parts.append(rows.slice(first, size))
        first += size
    return pa.concat_tables(parts)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=8),
    st.lists(st.integers(1, 12), max_size=5),
)
def test_rows_at_places_are_those_that_are_taken(
    runs: list[tuple[int, int]], sizes: list[int]
) -> None:
    rows = chunked(pa.table({"n": range(40), "text": [f"t{n}" for n in range(40)]}), sizes)
    places = [place for first, count in runs for place in range(first, first + count)]
    assert rows_at(rows, places).equals(rows.take(pa.array(places, pa.int64())))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(st.integers(1, 12), max_size=5))
def test_records_in_order_are_those_that_are_sorted(data: st.DataObject, sizes: list[int]) -> None:
    kinds = st.tuples(st.sampled_from(["b", "ä", "a.b", "a"]), st.integers(0, 2))
    runs = data.draw(st.lists(st.tuples(kinds, st.integers(1, 8)), max_size=8))
    next_of: dict[tuple[str, int], int] = {}
    found: list[tuple[str, int, int]] = []
    for place, count in runs:
        first = next_of.get(place, 0)
        next_of[place] = first + count
        found += [(*place, offset) for offset in range(first, first + count)]
    if data.draw(st.booleans()):
        found = data.draw(st.permutations(found))
    topics, partitions, offsets = zip(*found, strict=True) if found else ((), (), ())
    rows = pa.table(
        {
            "topic": pa.array(topics, pa.string()),
            "partition": pa.array(partitions, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
        }
    )
    rows = chunked(rows, sizes)
    assert in_order(rows).equals(rows.sort_by(PLACES))
