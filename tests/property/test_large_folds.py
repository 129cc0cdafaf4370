"""A fold in slices gives the rows of a fold at once, whatever is in the transaction."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from projections.log.datasets import dataset_of
from projections.log.layout import Lake, current_name
from projections.log.tables import Tables
from projections.log.writer import ArrowWriter, Guard
from projections.state import current as current_module
from projections.state.current import CurrentTables
from projections.state.large import LogRows, slices, split
from tests.support.lake.folding import (
    SOURCE,
    TABLE,
    Done,
    State,
    apply,
    changes,
    registry,
    state_of,
)

NAME = current_name(SOURCE, TABLE)
CHANGE = st.builds(
    Done,
    st.sampled_from("cuuud"),
    st.integers(1, 4),
    st.sampled_from("ab"),
    st.sampled_from(["x", "y", None]),
    st.sampled_from([1, 2, None]),
)
EPOCH = st.lists(st.one_of(*[CHANGE] * 5, st.just(Done("t"))), min_size=1, max_size=12)


def logged(lake: Lake, tables: Tables, done: Sequence[Done], first: int) -> LogRows:
    """Write changes to a log in two commits, and return them unread."""
    rows, path = changes(done, first=first), lake.path(f"log/changes/{first}")
    half = rows.num_rows // 2
    for number, part in enumerate((rows.slice(half), rows.slice(0, half)), start=1):
        ArrowWriter(tables).append(path, part, Guard("log", Epoch(number)))
    table = tables.open(path)
    assert table is not None
    return LogRows(dataset_of(table), pc.field("table") == TABLE)


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows are a slice, and about as many lie in one file by key."""
    cut = slices
    monkeypatch.setattr(current_module, "SLICE_ROWS", 3)
    monkeypatch.setattr(current_module, "slices", lambda rows: cut(rows, most=3))


@settings(max_examples=30, deadline=None)
@given(st.lists(EPOCH, min_size=1, max_size=4), st.booleans())
def test_p4_a_fold_in_slices_equals_the_oracle(epochs: list[list[Done]], tailed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        lake, tables = Lake.at(Path(folder)), Tables()
        current = CurrentTables(lake, tables, registry())
        state: State = {}
        first = 1
        for number, done in enumerate(epochs, start=1):
            if tailed and number % 2:
                current.fold(SOURCE, TABLE, changes(done, first=first), Epoch(number))
            else:
                rows = logged(lake, tables, done, first)
                at = current.fold_large(SOURCE, TABLE, rows, Epoch(number))
                again = current.fold_large(SOURCE, TABLE, rows, Epoch(number))
                assert {n: t.version for n, t in at.items()} == {
                    n: t.version for n, t in again.items()
                }
            first += len(done)
            state = apply(state, done)
            assert state_of(Tables().read(lake.path(NAME))) == state
        assert not Path(lake.path("current/_staging/shop.public.items"), "1").exists()
        current.close()


def test_only_tables_with_many_rows_are_told_apart(lake: Lake) -> None:
    tables = Tables()
    path = lake.path("log/changes/shop")
    many = changes([Done("c", i) for i in range(20)], first=1)
    rows = many.append_column("epoch_", many["epoch"]).drop_columns(["epoch_", "epoch"])
    rows = rows.append_column("epoch", pc.fill_null(many["epoch"], 7))
    ArrowWriter(tables).append(path, rows, Guard("log", Epoch(1)))
    log = tables.open(path)
    assert log is not None
    everything = pc.field("epoch") >= 1
    where, large = split(log, everything, since=1, most=19)
    assert set(large) == {TABLE}
    assert large[TABLE].read().num_rows == 20
    assert dataset_of(log).to_table(filter=where).num_rows == 0
    assert split(log, everything, since=1, most=20)[1] == {}
    assert split(log, everything, since=8, most=19)[1] == {}
