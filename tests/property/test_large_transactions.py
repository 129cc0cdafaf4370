"""A transaction of any size is read in parts: each row about once, and never all at once."""

from __future__ import annotations

import random
import tempfile
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.datasets import dataset_of
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.current import image_stager
from pipeline.installs import installation as installing
from pipeline.installs.install_book import hold
from pipeline.log import committed_changes, large_folds
from pipeline.log.large_folds import LogRows, slices, split
from pipeline.order import places_of
from schemas.records import Operation
from tests.support.lake.bulk import HandLake
from tests.support.lake.folding import SOURCE, TABLE, Done
from tests.support.lake.one_transaction import one_transaction

ROWS, PER_FILE = 400, 10


def logged(lake: Lake, rows: pa.Table) -> LogRows:
    """Write rows to a log, a file for each epoch, in no order."""
    tables, path = Tables(), lake.path("log/changes/x")
    epochs = pc.unique(rows["epoch"]).to_pylist()
    random.Random(1).shuffle(epochs)
    for number, epoch in enumerate(epochs, start=1):
        part = rows.filter(pc.equal(rows["epoch"], epoch))
        ArrowWriter(tables).append(path, part, Guard("log", Epoch(number)))
    table = tables.open(path)
    assert table is not None
    return LogRows(dataset_of(table), pc.field("table") == TABLE)


def test_every_file_of_a_large_transaction_is_read_about_once(lake: Lake) -> None:
    rows = logged(
        lake, one_transaction([Done("u", i) for i in range(ROWS)], rows_per_epoch=PER_FILE)
    )
    parts = list(slices(rows, most=2 * PER_FILE))
    assert len(parts) == ROWS // (2 * PER_FILE)
    assert sum(len(part.log.files) for part in parts) <= ROWS // PER_FILE + len(parts)
    found = [sorted(places_of(part.read())) for part in parts]
    assert [len(part) for part in found] == [2 * PER_FILE] * len(parts)
    assert all(one[-1] < other[0] for one, other in pairwise(found))


@given(st.lists(st.sampled_from("cduk"), min_size=1, max_size=60), st.integers(1, 9))
@example(list("kkdkkk"), 1)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_have_every_row_once_in_order_and_no_changed_key_is_torn(
    ops: list[str], most: int
) -> None:
    done = [Done(op, i) for i, key in enumerate(ops) for op in ("dc" if key == "k" else key)]
    with tempfile.TemporaryDirectory() as folder:
        table = one_transaction(done, rows_per_epoch=PER_FILE)
        rows = logged(Lake.at(Path(folder)), table)
        parts = [part.read().sort_by("total_order") for part in slices(rows, most=most)]
    orders = [order for part in parts for order in part["total_order"].to_pylist()]
    assert orders == list(range(1, len(done) + 1))
    ends = [(part["operation"][0].as_py(), part["operation"][-1].as_py()) for part in parts]
    for (_, last), (first, _) in pairwise(ends):
        assert (last, first) != (Operation.DELETE.value, Operation.INSERT.value)


@pytest.mark.parametrize("rows_per_file", [PER_FILE, 100])
def test_wide_rows_are_read_by_their_bytes_however_well_they_pack(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, rows_per_file: int
) -> None:
    most = 200_000
    monkeypatch.setattr(large_folds, "SLICE_BYTES", most)
    done = [Done("u", i, name=f"{i:04} " * 1_280) for i in range(100)]
    rows = logged(lake, one_transaction(done, rows_per_epoch=rows_per_file))
    found = [part.read() for part in slices(rows)]
    assert sum(part.num_rows for part in found) == 100
    assert max(part.nbytes for part in found) <= 1.5 * most
    table = Tables().open(lake.path("log/changes/x"))
    assert table is not None
    path = Path(lake.path("log/changes/x"))
    assert sum(file.stat().st_size for file in path.rglob("*.parquet")) < most
    read = [(most, [TABLE]), (10 * most, [])]
    for bound, large in read:
        assert [*split(table, rows.where, since=0, most_bytes=bound)[1]] == large


def test_what_decides_on_columns_is_a_row_of_each_kind(lake: Lake) -> None:
    done = [Done("uud"[i % 3], i) for i in range(ROWS)]
    planned = logged(lake, one_transaction(done, rows_per_epoch=PER_FILE)).planned()
    assert sorted(planned["total_order"].to_pylist()) == [1, 3]


@pytest.mark.parametrize("again", [False, True])
def test_p4_a_large_transaction_during_a_copy_is_folded_in_parts(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """It committed while its table was read, and comes with the install of what was read."""
    most, read = 5, LogRows.read
    seen: list[int] = []

    def counted(rows: LogRows) -> pa.Table:
        found = read(rows)
        seen.append(found.num_rows)
        return found

    monkeypatch.setattr(LogRows, "read", counted)
    for bound in ("MOST_ROWS", "LARGE_ROWS"):
        monkeypatch.setattr(committed_changes, bound, most)
    for module in (image_stager, installing):
        monkeypatch.setattr(module, "slices", lambda rows: slices(rows, most=most))
    hand = HandLake(lake)
    hold(hand.lake, hand.tables, SOURCE)
    hand.source.commit(*(Done("c", i, name="before") for i in range(10)))
    first = hand.stage(releases=True)
    hand.source.commit(*(Done("u", i % 40, name=f"n{i}", size=i) for i in range(60)))
    hand.source.commit(Done("d", 3), Done("c", 50))
    hand.epoch(rows=30)
    hand.announce(first)
    hand.epoch()
    if again:
        copied = hand.stage()
        hand.source.commit(*(Done("u", i, name=None, size=-i) for i in range(1, 30) if i != 3))
        hand.announce(copied)
        hand.epoch()
    hand.epoch()
    assert hand.state() == hand.source.state
    assert max(seen) <= 2 * most
    hand.current.close()
