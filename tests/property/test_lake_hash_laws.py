"""A lake table hashed by DuckDB has the hash that `schemas.row_hash` specifies, type by type."""

from __future__ import annotations

import random
import string
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.verification.hashing import LakeRows
from pipeline.verification.lake_state import LakeState, Layer
from schemas.key_ranges import WHOLE, Bound, KeyColumn, KeyOrder, KeyRange, cut_at
from schemas.row_hash import hash_text, table_hash
from tests.support.services.tier import examples

TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00"), max_size=9)
MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))  # noqa: DTZ001
DATES = st.dates(date(1, 1, 1))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda n: Decimal(n).scaleb(-scale, None))


def rectangles(width: int) -> st.SearchStrategy[Any]:
    row = st.lists(st.none() | st.integers(0, 9), min_size=width, max_size=width)
    return st.lists(row, max_size=3)


KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.decimal128(12, 3), decimals(12, 3)),
    (pa.decimal128(7, 0), decimals(7, 0)),
    (pa.decimal128(4, 4), decimals(4, 4)),
    (pa.decimal128(38, 10), st.integers(-(10**27), 10**27).map(Decimal)),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=9)),
    (pa.date32(), DATES),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda m: m.replace(tzinfo=UTC))),
    (pa.timestamp("ms"), MOMENTS.map(lambda m: m.replace(microsecond=0))),
    (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-9, 9), max_size=3)),
    (pa.list_(pa.string()), st.lists(st.none() | TEXT, max_size=3)),
    (pa.list_(pa.float64()), st.lists(st.none() | st.floats(), max_size=3)),
    (pa.list_(pa.date32()), st.lists(st.none() | DATES, max_size=3)),
    (pa.list_(pa.decimal128(9, 2)), st.lists(st.none() | decimals(9, 2), max_size=3)),
    (pa.list_(pa.binary()), st.lists(st.none() | st.binary(max_size=3), max_size=3)),
    (pa.list_(pa.list_(pa.int32())), st.integers(1, 3).flatmap(rectangles)),
    (pa.null(), st.none()),
]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 5))
    columns = {
        f"c{number}": pa.array(
            draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind
        )
        for number, (kind, values) in enumerate(KINDS)
    }
    return pa.table({"id": pa.array(range(rows), pa.int64()), **columns})


def hashed(table: pa.Table, columns: list[str]) -> tuple[int, str]:
    state = LakeState(key=("id",), base=ds.dataset(table))
    groups = LakeRows(state, tuple(columns), None).group_hashes((), 1)
    return groups.get(0, (0, "0" * 32))


@settings(deadline=None, max_examples=examples(12, matrix=40))
@given(tables())
def test_both_hashes_are_equal_for_every_type(table: pa.Table) -> None:
    if hashed(table, sorted(table.column_names)) != table_hash(table):
        wrong = [n for n in table.column_names if hashed(table, [n]) != table_hash(table, [n])]
        raise AssertionError(f"differ: {[table.schema.field(name).type for name in wrong]}")


def test_odd_floats_and_decimals_have_one_text() -> None:
    (nan,) = struct.unpack(">d", bytes.fromhex("fff8000000000001"))
    floats = [nan, float("nan"), float("inf"), float("-inf"), -0.0, 5e-324, None]
    table = pa.table(
        {
            "id": list(range(7)),
            "f4": pa.array(floats, pa.float32()),
            "f8": pa.array(floats, pa.float64()),
            "d": pa.array([Decimal("0.05"), Decimal("-0.5"), *[None] * 5], pa.decimal128(2, 2)),
        }
    )
    for name in ("f4", "f8", "d"):
        assert hashed(table, [name]) == table_hash(table, [name]), name


def test_a_file_that_is_gone_is_told_as_such(tmp_path: Path) -> None:
    """DuckDB, which pulls the rows, says no more than that something failed."""
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    base = ds.dataset(tmp_path, format="parquet")
    rows = LakeRows(LakeState(key=("id",), base=base), ("id",), None)
    assert rows.group_hashes((), 1)[0][0] == 1
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.parquet"):
        rows.group_hashes((), 1)
    with pytest.raises(FileNotFoundError, match=r"a\.parquet"):
        list(rows.row_hashes(within=WHOLE))


@settings(deadline=None, max_examples=examples(8, matrix=20))
@given(tables(), st.data())
def test_layers_replace_and_take_away(table: pa.Table, data: st.DataObject) -> None:
    over = data.draw(tables())
    gone = [data.draw(st.booleans()) for _ in range(over.num_rows)]
    names = sorted(table.column_names)
    layer = Layer(
        rows=over.append_column("__deleted", pa.array(gone, pa.bool_())), deleted="__deleted"
    )
    state = LakeState(key=("id",), base=ds.dataset(table), layers=(layer,))
    kept = over.filter(pa.array([not each for each in gone], pa.bool_()))
    wanted = pa.concat_tables([kept, table.slice(over.num_rows)])
    found = LakeRows(state, tuple(names), None).group_hashes((), 1).get(0, (0, "0" * 32))
    assert found == table_hash(wanted, names)


ORDERED = (
    KeyColumn(name="a", type="text", order=KeyOrder.TEXT),
    KeyColumn(name="b", type="int4", order=KeyOrder.INTEGER),
)


@pytest.mark.parametrize("seed", range(5))
def test_ranges_part_the_rows_and_their_hashes_add_up(seed: int) -> None:
    dice = random.Random(seed)
    alphabet = [*string.ascii_letters, "é", "😀", "'", " "]
    words = ["".join(dice.choices(alphabet, k=dice.randint(0, 3))) for _ in range(200)]
    keys = sorted(
        {(word, dice.randint(-3, 3)) for word in words}, key=lambda k: (k[0].encode(), k[1])
    )
    table = pa.table(
        {
            "a": [a for a, _ in keys],
            "b": pa.array([b for _, b in keys], pa.int32()),
            "v": list(range(len(keys))),
        }
    )
    bounds: list[Bound] = [(a, str(b)) for a, b in keys[:: dice.randint(20, 60)]][1:]
    rows = LakeRows(LakeState(key=("a", "b"), base=ds.dataset(table)), ("a", "b", "v"), ORDERED)
    groups = rows.group_hashes(bounds, 1)
    by_range = [list(rows.row_hashes(within=one)) for one in cut_at(bounds)]
    assert {n: found[0] for n, found in groups.items()} == dict(enumerate(map(len, by_range)))
    assert len({key for found in by_range for key, _ in found}) == len(keys)
    for number, found in enumerate(by_range):
        high = sum(int(digest[:16], 16) for _, digest in found)
        low = sum(int(digest[16:], 16) for _, digest in found)
        assert groups[number][1] == hash_text(high, low)
    first = by_range[0][0][0]
    assert [key for key, _ in rows.row_hashes(within=KeyRange(), keys=[first])] == [first]
