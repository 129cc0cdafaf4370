"""One history of a lake, whoever computes its folds."""

from __future__ import annotations

import os
from enum import StrEnum

import pyarrow as pa
from pyspark.sql import SparkSession

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import DRIVER_BYTES, HistoryTables

FORCED_BYTES = 0 if os.environ.get("TESTS_EXECUTOR") == "spark" else DRIVER_BYTES


class Form(StrEnum):
    """Who computes folds, and who commits what changes."""

    DRIVER = "driver"
    COLLECTED = "executors, committed by the driver"
    EXECUTORS = "executors"


class KeptHistory:
    """Writes typed rows as the pipeline does, and folds them."""

    def __init__(
        self, spark: SparkSession, lake: Lake, history: HistoryOf, form: Form = Form.DRIVER
    ) -> None:
        self.lake, self.history = lake, history
        self.tables = Tables()
        self.writer = ArrowWriter(self.tables)
        self.histories = HistoryTables(
            spark,
            lake,
            self.tables,
            driver_bytes=DRIVER_BYTES if form is Form.DRIVER else 0,
            **({"bounded_bytes": -1} if form is Form.EXECUTORS else {}),
        )
        self.epoch = 0

    def fold(self, rows: pa.Table, truncates: pa.Table | None = None) -> TableAt:
        """Append rows of the next epoch, and fold them."""
        self.epoch += 1
        self.add(self.history.typed, rows)
        if truncates is not None and truncates.num_rows:
            assert self.history.truncates is not None
            self.add(self.history.truncates, truncates)
        return self.again()

    def add(self, name: str, rows: pa.Table) -> None:
        """Append rows to a typed table, and fold nothing."""
        self.writer.append(self.lake.path(name), rows, Guard(name, Epoch(self.epoch)))

    def again(self) -> TableAt:
        """Fold what came up to the last epoch."""
        at = self.histories.fold(self.history, Epoch(self.epoch))
        assert at is not None
        return at

    def table(self) -> pa.Table:
        """Return the history as it is stored, versions of a key in their order."""
        table = self.tables.read(self.lake.path(self.history.name))
        assert table is not None
        order = [(name, "ascending") for name in (*self.history.named_as_kept().key, "valid_from")]
        return table.sort_by(order)

    def rows(self) -> list[dict[str, object]]:
        """Return the versions, in the order of keys and times."""
        return list(self.table().to_pylist())
