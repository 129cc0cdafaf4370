"""Ranges of keys: cut, joined, read from PostgreSQL's text, and filtered as they compare."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.key_ranges import (
    WHOLE,
    KeyColumn,
    KeyOrder,
    KeyRange,
    cut_at,
    fits,
    joined,
    lake_filter,
    ordered_key,
    value_of,
)
from schemas.pg_types import SourceColumn

DAY = 86_400_000_000
LAST_DAY = 2_932_896
FIRST_DAY = -719_162
KEY = (
    KeyColumn(name="a", type="text", order=KeyOrder.TEXT),
    KeyColumn(name="b", type="int4", order=KeyOrder.INTEGER),
)
BOUNDS = st.tuples(st.text("abé", max_size=2), st.integers(-2, 2))


@pytest.mark.parametrize(
    ("order", "text", "value"),
    [
        (KeyOrder.INTEGER, "-7", -7),
        (KeyOrder.DECIMAL, "1.50", Decimal("1.5")),
        (KeyOrder.TEXT, "a,b", "a,b"),
        (KeyOrder.BYTES, "\\x00ff", b"\x00\xff"),
        (KeyOrder.DATE, "1970-01-02", 1),
        (KeyOrder.DATE, "0044-03-15 BC", FIRST_DAY),
        (KeyOrder.DATE, "10000-01-01", LAST_DAY),
        (KeyOrder.DATE, "infinity", LAST_DAY),
        (KeyOrder.TIMESTAMP, "1970-01-01 00:00:01.5", 1_500_000),
        (KeyOrder.TIMESTAMP, "1969-12-31 23:59:59.999999+00", -1),
        (KeyOrder.TIMESTAMP, "-infinity", FIRST_DAY * DAY),
        (KeyOrder.TIMESTAMP, "infinity", (LAST_DAY + 1) * DAY - 1),
    ],
)
def test_bounds_are_read_as_the_lake_holds_them(order: KeyOrder, text: str, value: object) -> None:
    assert value_of(text, order) == value


def test_cut_ranges_cover_everything_and_join_again() -> None:
    ranges = cut_at([("1",), ("5",), ("9",)])
    assert [str(one) for one in ranges] == ["(…, 1)", "[1, 5)", "[5, 9)", "[9, …)"]
    assert joined(ranges) == (WHOLE,)
    assert [str(one) for one in joined([ranges[0], ranges[2], ranges[3]])] == ["(…, 1)", "[5, …)"]
    assert WHOLE.is_all
    assert str(KeyRange(low=("a", "1"))) == "[(a, 1), …)"


@given(BOUNDS, BOUNDS, st.lists(BOUNDS, max_size=8))
def test_a_filter_keeps_what_lies_between_in_the_keys_order(
    low: tuple[str, int], high: tuple[str, int], rows: list[tuple[str, int]]
) -> None:
    table = pa.table(
        {
            "a": pa.array([a for a, _ in rows], pa.string()),
            "b": pa.array([b for _, b in rows], pa.int32()),
        }
    )
    between = KeyRange(low=(low[0], str(low[1])), high=(high[0], str(high[1])))
    condition = lake_filter(between, KEY, table.schema)
    assert condition is not None
    found = ds.dataset(table).to_table(filter=condition).to_pylist()

    def placed(key: tuple[str, int]) -> tuple[bytes, int]:
        return key[0].encode(), key[1]

    wanted = [row for row in rows if placed(low) <= placed(row) < placed(high)]
    assert [(row["a"], row["b"]) for row in found] == wanted
    assert lake_filter(WHOLE, KEY, table.schema) is None


def test_a_key_has_ranges_only_where_the_lake_keeps_its_order() -> None:
    text = SourceColumn(name="a", type="text")
    assert ordered_key([text, SourceColumn(name="b", type="int4")]) == KEY
    free = SourceColumn(name="n", type="numeric")
    enum = SourceColumn(name="e", type="mood", kind="e")
    array = SourceColumn(name="l", type="int4", is_array=True, dimensions=1)
    for odd in (free, enum, array):
        assert ordered_key([text, odd]) is None
    assert not fits(KeyOrder.INTEGER, pa.string())
    assert fits(KeyOrder.TIMESTAMP, pa.timestamp("us", "UTC"))
