"""Tables with more columns than Delta keeps statistics of by default."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.positions import Epoch
from lake.layout import Lake
from lake.ranges import Range
from lake.tables import Tables, greatest
from lake.writer import ArrowWriter, Guard
from pipeline.history.fold import HistoryFold
from pipeline.history.shape import HistoryOf
from pipeline.history.spark_fold import near_keys


def rows(epoch: int, *, columns: int = 60) -> pa.Table:
    wide = {f"c{n}": [epoch] for n in range(columns)}
    return pa.table({**wide, "_epoch": pa.array([epoch], pa.int64())})


def test_the_newest_epoch_of_a_wide_table_is_found(lake: Lake) -> None:
    tables, path = Tables(), lake.path("typed/wide")
    for epoch in (1, 2, 3):
        ArrowWriter(tables).append(path, rows(epoch), Guard("typed/wide", Epoch(epoch)))
        table = tables.open(path)
        assert table is not None
        assert greatest(table, "_epoch") == epoch
    bounds = pa.table(table.get_add_actions(flatten=True))
    assert bounds["max._epoch"].null_count == 0


def test_of_files_without_statistics_the_column_is_read(lake: Lake) -> None:
    path = lake.path("typed/old")
    for epoch in (1, 7, 4):
        write_deltalake(path, rows(epoch), mode="append")
    assert greatest(DeltaTable(path), "_epoch") == 7
    assert greatest(DeltaTable(path), "absent") is None


@pytest.mark.parametrize("kind", [pa.int16(), pa.int32(), pa.int64()])
def test_a_key_may_be_the_greatest_of_its_type(lake: Lake, kind: pa.DataType) -> None:
    last = 2 ** (kind.bit_width - 1) - 1
    for keys, upper in (([5, 8], 9), ([5, last], None)):
        name = f"typed/keys.{kind}.{keys[-1]}"
        found = pa.table({"id": pa.array(keys, kind), "_epoch": pa.array([1, 1], pa.int64())})
        ArrowWriter(Tables()).append(lake.path(name), found, Guard(name, Epoch(1)))
        history = HistoryOf(
            name="history/x", typed=name, key=("id",), identity=("id",), by_row=False
        )
        came = Range(column="_epoch", lower=0, upper=2)
        fold = HistoryFold(
            history=history, incoming=found.schema, within=came, epoch=Epoch(1), anew=False
        )
        assert near_keys(lake, Tables(), fold) == (Range(column="id", lower=5, upper=upper),)
