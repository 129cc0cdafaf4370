"""The hash of a key is its own: what stands beside it in a batch changes nothing."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.current.key_files import hashes_of

VALUES = {
    pa.int16(): st.integers(-5, 5),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.string(): st.text(max_size=3),
    pa.float64(): st.floats(allow_nan=False),
    pa.date32(): st.dates(datetime.date(1900, 1, 1), datetime.date(2100, 1, 1)),
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_a_key_has_one_hash_whatever_stands_beside_it(kind: pa.DataType) -> None:
    @given(st.lists(st.tuples(VALUES[kind] | st.none(), st.integers(0, 2) | st.none()), max_size=6))
    def holds(keys: list[tuple[object, int | None]]) -> None:
        columns = pa.schema([("a", kind), ("b", pa.int32())])

        def hashes(some: list[tuple[object, int | None]]) -> list[int]:
            rows = [{"a": a, "b": b} for a, b in some]
            return hashes_of(pa.Table.from_pylist(rows, columns)).tolist()

        assert hashes(keys) == [found for key in keys for found in hashes([key])]

    holds()


def test_a_null_is_no_zero() -> None:
    found = hashes_of(pa.table({"id": pa.array([0, None, 1], pa.int64())}))
    assert len({*found.tolist()}) == 3
