"""The canonical text of a row, and that its hash tells rows apart."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest

from kernel.errors import ContractViolation
from schemas.row_hash import table_hash


def hash_of_text(*rows: str) -> str:
    high = low = 0
    for row in rows:
        digest = hashlib.md5(row.encode(), usedforsecurity=False).hexdigest()
        high, low = high + int(digest[:16], 16), low + int(digest[16:], 16)
    return f"{high % 2**64:016x}{low % 2**64:016x}"


@pytest.mark.parametrize(
    ("kind", "value", "canonical"),
    [
        (pa.string(), None, "N"),
        (pa.string(), "N", "1:N"),
        (pa.string(), "", "0:"),
        (pa.string(), "é😀", "2:é😀"),
        (pa.bool_(), True, "4:true"),
        (pa.int16(), -3, "2:-3"),
        (pa.float32(), 1.5, "8:3fc00000"),
        (pa.float64(), -0.0, "16:8000000000000000"),
        (pa.float64(), float("nan"), "16:7ff8000000000000"),
        (pa.decimal128(20, 9), Decimal("0.000000001"), "11:0.000000001"),
        (pa.decimal128(5, 0), Decimal("12300"), "5:12300"),
        (pa.binary(), b"\x00\xff", "4:00ff"),
        (pa.date32(), date(1969, 12, 31), "2:-1"),
        (pa.timestamp("us", "UTC"), datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC), "7:1000005"),
        (pa.timestamp("ms"), datetime(1970, 1, 1, 0, 0, 1), "7:1000000"),  # noqa: DTZ001
        (pa.list_(pa.string()), ["a", None, "b,c"], "13:[1:a,N,3:b,c]"),
        (pa.list_(pa.date32()), [date(1970, 1, 3)], "5:[1:2]"),
        (pa.list_(pa.int32()), [], "2:[]"),
    ],
)
def test_canonical_text(kind: pa.DataType, value: object, canonical: str) -> None:
    table = pa.table({"x": pa.array([value], kind)})
    assert table_hash(table) == (1, hash_of_text(canonical))


def test_columns_are_taken_in_the_order_that_is_asked_for() -> None:
    table = pa.table({"b": ["2"], "a": [1]})
    assert table_hash(table) == (1, hash_of_text("1:1,1:2"))
    assert table_hash(table, ["b"]) == (1, hash_of_text("1:2"))
    assert table_hash(table, ["b", "a"]) == (1, hash_of_text("1:2,1:1"))


def test_an_empty_table_has_a_hash_too() -> None:
    assert table_hash(pa.table({"a": pa.array([], pa.int64())})) == (0, "0" * 32)


def test_rows_that_look_alike_differ() -> None:
    texts = [("a", "bc"), ("ab", "c"), ("a,1:b", "c"), ("", "abc"), (None, "abc"), ("N", "abc")]
    hashes = {table_hash(pa.table({"x": [x], "y": [y]})) for x, y in texts}
    assert len(hashes) == len(texts)


def test_a_duration_is_refused() -> None:
    with pytest.raises(ContractViolation, match="no canonical text"):
        table_hash(pa.table({"x": [timedelta(seconds=1)]}))


def test_structs_and_maps_are_told_apart_by_their_fields_and_entries() -> None:
    struct = pa.array([{"a": 1, "b": None}], pa.struct([("a", pa.int64()), ("b", pa.string())]))
    assert table_hash(pa.table({"x": struct})) == (1, hash_of_text("7:(1:1,N)"))
    kind = pa.map_(pa.string(), pa.int64())
    orders: list[list[tuple[str, int | None]]] = [[("b", 2), ("a", None)], [("a", None), ("b", 2)]]
    hashes = {table_hash(pa.table({"x": pa.array([order], kind)})) for order in orders}
    assert hashes == {(1, hash_of_text("19:{(1:a,N),(1:b,1:2)}"))}
