"""The place of a change as two numbers."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from pipeline.order import LOW, low_of, places_of

Row = tuple[int, int, int, bool, str]
SCHEMA = pa.schema(
    [
        ("commit_order", pa.int64()),
        ("lsn", pa.int64()),
        ("total_order", pa.int64()),
        ("snapshot", pa.bool_()),
        ("operation", pa.string()),
    ]
)


def rows(*found: Row) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in found], SCHEMA
    )


def test_the_lsn_comes_before_the_number() -> None:
    told = rows((100, 90, 7, False, "c"), (100, 130, 1, False, "u"), (140, 95, 1, False, "c"))
    assert places_of(told) == sorted(places_of(told))
    assert len(set(places_of(told))) == 3


@pytest.mark.parametrize("total", [1, 2**20 - 1, 2**20, 2**20 + 1, 2**21 - 1, 2**33 - 1])
def test_both_halves_of_a_changed_key_follow_each_other(total: int) -> None:
    before, after = low_of(
        rows((100, 4096, total, False, "d"), (100, 4096, total + 1, False, "c"))
    ).to_pylist()
    assert after == before + 1


def test_changes_of_one_lsn_have_places_of_their_own() -> None:
    told = rows(*((100, 4096, total, False, "c") for total in range(2**20 - 200, 2**20 + 200)))
    assert len(set(places_of(told))) == 400
    following = rows((100, 4097, 1, False, "d"), (100, 4096, 2**20, False, "c"))
    assert len(set(places_of(following))) == 2


@pytest.mark.parametrize("total", [1, 7, 2**20 - 1, 2**20 + 1])
def test_a_message_comes_before_the_row_that_begins_where_it_ends(total: int) -> None:
    told = rows((100, 4096, total + 1, False, "m"), (100, 4096, total, False, "c"))
    message, row = places_of(told)
    assert message < row
    before = rows((100, 4088, total, False, "c"))
    assert places_of(before) < [message]


def test_rows_of_a_snapshot_come_first_and_rows_without_a_place_do_no_harm() -> None:
    told = rows((100, 100, 0, True, "r"), (100, 24, 1, False, "c"))
    snapshot, streamed = low_of(told).to_pylist()
    assert snapshot == 0 < streamed
    end = pa.Table.from_pylist([{"lsn": 5, "snapshot": None}], SCHEMA)
    assert low_of(end).to_pylist() == [None]


def test_a_filter_sees_the_same_numbers() -> None:
    told = rows(*((100, 50 + n // 3, n, False, "c" if n % 2 else "d") for n in range(1, 40)))
    found = ds.dataset(told).to_table(columns={"low": LOW})["low"]
    assert found.to_pylist() == low_of(told).to_pylist()
