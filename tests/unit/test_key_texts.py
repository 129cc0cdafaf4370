"""Texts of keys that changed: which rows get one, and which keys Spark alone renders."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
import pytest

from kernel.errors import BeyondThisProcess
from pipeline.history.key_texts import key_texts


def rows(operations: str, lsns: list[int | None], key: pa.Array) -> pa.Table:
    hidden = {"_operation": list(operations), "_seq_hi": [1] * len(lsns)}
    return pa.table({"id": key, "_lsn": pa.array(lsns, pa.int64()), **hidden})


def test_rows_that_share_their_place_in_the_wal_get_a_text() -> None:
    found = rows("dcucdr", [1, 1, 1, 2, 3, None], pa.array(range(6)))
    assert key_texts(found, ["id"]).to_pylist() == ['{"id":0}', '{"id":1}', None, None, None, None]


@pytest.mark.parametrize(
    "key",
    [
        pa.array([1.5, 2.5]),
        pa.array([b"a", b"b"]),
        pa.array([{"a": 1}, {"a": 2}]),
        pa.array([0, 2**31 - 1], pa.int32()).cast(pa.date32()),
    ],
    ids=["doubles", "bytes", "objects", "beyond the calendar"],
)
def test_other_keys_are_beyond_this_process_only_where_they_change(key: pa.Array) -> None:
    with pytest.raises(BeyondThisProcess):
        key_texts(rows("dc", [1, 1], key), ["id"])
    assert key_texts(rows("dc", [1, 2], key), ["id"]).to_pylist() == [None, None]
    assert key_texts(rows("uu", [1, 1], key), ["id"]).to_pylist() == [None, None]


def test_days_are_written_as_days() -> None:
    found = rows("dc", [1, 1], pa.array([date(1, 1, 1), date(9999, 12, 31)]))
    assert key_texts(found, ["id"]).to_pylist() == ['{"id":"0001-01-01"}', '{"id":"9999-12-31"}']
