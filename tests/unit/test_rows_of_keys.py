"""Executors read the rows of keys that differ, and no more than have room."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from kernel.errors import TooLarge
from lake.collecting import Limit
from pipeline.verification.lake_state import LakeState
from pipeline.verification.state_query import StateQuery
from replay.large_tables import ROWS, RowsOfKeys

KEY = ("id",)


def task(limit: Limit) -> RowsOfKeys:
    """Return what reads one key of a part, which has it in a thousand rows."""
    rows = pa.table({"id": ["often"] * 1000 + ["once"], "text": ["x" * 100] * 1001})
    state = LakeState(key=KEY, base=ds.dataset(rows.slice(0, 1)))
    query = StateQuery(
        state=state, columns=KEY, sql=f"SELECT md5({state.cells(KEY)}) AS k FROM state"
    )
    wanted = query.table()["k"].to_pylist()
    return RowsOfKeys(
        parts=[ds.dataset(rows)], key=KEY, columns=("id", "text"), wanted=wanted, limit=limit
    )


def test_all_rows_of_the_wanted_keys_are_read() -> None:
    found = task(ROWS)(0)
    assert found["id"].to_pylist() == ["often"] * 1000


def test_a_task_holds_no_more_than_its_limit() -> None:
    with pytest.raises(TooLarge, match="rows of a test") as raised:
        task(Limit(what="rows of a test", most_bytes=50_000))(0)
    assert "of a part" in str(pickle.loads(pickle.dumps(raised.value)))
