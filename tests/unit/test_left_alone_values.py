"""What an update left alone is found for typed tables, also when the old version is gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.positions import Epoch
from projections.log.frames import CHANGES, TRANSACTIONS_TABLE
from projections.log.layout import Lake, changes_log
from projections.log.tables import TableAt, Tables
from projections.log.typed_changes import TypedChanges
from projections.log.typed_columns import Visible
from projections.log.writer import ArrowWriter, Guard
from projections.state.current import CurrentTables, current_name
from tests.folding import AT, SOURCE, TABLE, Done, changes, registry

CURRENT = current_name(SOURCE, TABLE)


class Capture:
    """Logs and folds one change in each epoch, and brings it to the typed table."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.epoch = lake, 0
        self.current = CurrentTables(lake, Tables(), registry())
        self.at: dict[str, TableAt] = {}

    def take_in(self, done: Done) -> None:
        self.epoch += 1
        number = self.epoch
        rows = changes([done], first=number)
        end = {
            "table": TRANSACTIONS_TABLE,
            "transaction_id": str(number),
            "lsn": number,
            "committed_at": AT,
            "counts": "{}",
        }
        logged = [{**row, "epoch": number} for row in [*rows.to_pylist(), end]]
        name = changes_log(SOURCE)
        table = pa.Table.from_pylist(logged, CHANGES)
        guard = Guard(name, Epoch(number))
        ArrowWriter(Tables()).append(self.lake.path(name), table, guard, partition_by=["table"])
        self.at = dict(self.current.fold(SOURCE, TABLE, rows, Epoch(number)))

    def bring(self, before: dict[str, TableAt]) -> None:
        visible = Visible(self.epoch - 1, [(Epoch(self.epoch), self.epoch)])
        TypedChanges(self.lake, Tables(), registry()).add(
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
        return rows.sort_by("_epoch")["name"].to_pylist()


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
