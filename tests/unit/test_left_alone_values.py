"""What an update left alone is found for typed tables, also when the old version is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake.layout import Lake, changes_log, current_name
from lake.table_columns import CHANGES, TRANSACTIONS_TABLE
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.current.tables import CurrentTables
from pipeline.typed.changes import TypedChanges
from pipeline.typed.columns import Visible
from tests.support.lake.folding import AT, SOURCE, TABLE, Done, changes, registry

CURRENT = current_name(SOURCE, TABLE)


class Capture:
    """Logs and folds one transaction in each epoch, and brings it to the typed table.

    Of more than `most` rows slice by slice.
    """

    def __init__(self, lake: Lake, *, most: int = 1_000) -> None:
        self.lake, self.most, self.epoch = lake, most, 0
        self.current = CurrentTables(lake, Tables(), registry())
        self.at: dict[str, TableAt] = {}

    def take_in(self, *done: Done) -> None:
        self.epoch += 1
        number = self.epoch
        rows = changes(done, first=1).to_pylist()
        for place, row in enumerate(rows, start=1):
            row |= {"transaction_id": str(number), "commit_order": number * 100}
            row |= {"lsn": number * 100 + place, "total_order": place}
        end = {
            "table": TRANSACTIONS_TABLE,
            "transaction_id": str(number),
            "lsn": number * 100 + 99,
            "committed_at": AT,
            "counts": "{}",
        }
        logged = [{**row, "epoch": number} for row in [*rows, end]]
        name = changes_log(SOURCE)
        table = pa.Table.from_pylist(logged, CHANGES)
        guard = Guard(name, Epoch(number))
        ArrowWriter(Tables()).append(self.lake.path(name), table, guard, partition_by=["table"])
        folded = pa.Table.from_pylist(rows, CHANGES)
        self.at = dict(self.current.fold(SOURCE, TABLE, folded, Epoch(number)))

    def bring(self, before: dict[str, TableAt]) -> None:
        end = self.epoch * 100 + 99
        visible = Visible(end - 100, [(Epoch(self.epoch), end)])
        TypedChanges(self.lake, Tables(), registry(), most=self.most, slice_rows=4).add(
            SOURCE,
            visible,
            Epoch(self.epoch),
            pending_from=self.epoch,
            snapshot_lsn=0,
            current=before,
        )

    def names(self) -> list[object]:
        rows = Tables().read(self.lake.path(f"typed/{SOURCE}.{TABLE}"))
        assert rows is not None
        order = [(name, "ascending") for name in ("_epoch", "_seq_hi", "_seq_lo")]
        return rows.sort_by(order)["name"].to_pylist()


def without_files(lake: Lake, at: TableAt) -> TableAt:
    for name in DeltaTable(lake.path(CURRENT), version=at.version).file_uris():
        Path(name.removeprefix("file://")).unlink()
    return at


def without_log(lake: Lake, at: TableAt) -> TableAt:
    return TableAt(version=999, as_of_epoch=at.as_of_epoch)


@pytest.mark.parametrize("gone", [None, without_files, without_log])
def test_what_an_update_left_alone_is_found(
    lake: Lake, gone: Callable[[Lake, TableAt], TableAt] | None
) -> None:
    capture = Capture(lake)
    capture.take_in(Done("c", 1, "a", "long", 1))
    capture.bring({})
    before = capture.at
    capture.take_in(Done("u", 1, "a", None, 2))
    if gone is not None:
        before = {CURRENT: gone(lake, before[CURRENT])}
    capture.bring(before)
    capture.take_in(Done("u", 1, "a", None, 3))
    capture.bring(capture.at)
    assert capture.names() == ["long"] * 3


@pytest.mark.parametrize("most", [5, 1_000])
def test_rows_that_all_move_to_the_key_of_the_next_take_their_values_along(
    lake: Lake, most: int
) -> None:
    capture = Capture(lake, most=most)
    capture.take_in(*(Done("c", key, "a", f"long {key}", key) for key in range(1, 9)))
    capture.bring({})
    before = capture.at
    moves = [(Done("d", key), Done("c", key - 1, "a", None, key)) for key in range(1, 9)]
    capture.take_in(*(change for move in moves for change in move))
    capture.bring(before)
    assert capture.names()[8:] == [value for key in range(1, 9) for value in (None, f"long {key}")]


def test_a_row_that_moves_to_where_one_was_deleted_takes_its_value_along(lake: Lake) -> None:
    """Also when the version before is gone, and all facts are looked through."""
    capture = Capture(lake)
    capture.take_in(Done("c", 1, "a", "long 1", 1), Done("c", 2, "a", "long 2", 2))
    capture.bring({})
    capture.take_in(Done("d", 1))
    capture.bring(capture.at)
    before = {CURRENT: without_log(lake, capture.at[CURRENT])}
    capture.take_in(Done("d", 2), Done("c", 1, "a", None, 3))
    capture.bring(before)
    assert capture.names()[3:] == [None, "long 2"]
