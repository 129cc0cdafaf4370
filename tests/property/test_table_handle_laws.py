"""A handle that reads commits by itself says what deltalake says of a table that it opens anew."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.positions import Epoch
from lake.handles import Handle
from lake.table_settings import TABLE_SETTINGS
from lake.tables import Tables
from lake.writer import UPSERT, ArrowWriter, Guard, with_op

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), [None, "", "a", "ä'\"\\", "z" * 400, "😀" * 70]),
    "number": (pa.int64(), [None, -(2**63), 0, 2**63 - 1]),
    "small": (pa.int16(), [None, -(2**15), 1]),
    "exact": (pa.decimal128(38, 4), [None, Decimal("-1.5000"), Decimal("9" * 34 + ".9999")]),
    "day": (pa.date32(), [None, date(1, 1, 1), date(9999, 12, 31)]),
    "moment": (pa.timestamp("us", "UTC"), [None, datetime(2013, 1, 1, 1, 2, 3, 456789, UTC)]),
    "local": (
        pa.timestamp("us"),
        [None, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC).replace(tzinfo=None)],
    ),
    "flag": (pa.bool_(), [None, True, False]),
    "bytes": (pa.binary(), [None, b"", b"\x00"]),
    "double": (pa.float64(), [None, 0.0, -0.0, 0.1, -1e300, float("inf"), float("nan")]),
    "single": (pa.float32(), [None, 0.1, 1e30]),
    "part": (pa.string(), ["a", "b"]),
}
SHAPE = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in VALUES.items())])
LAST = r"\U0010ffff", r"\U000fffff"
"""The last character of all, and what deltalake takes it for, as Python shows them."""
ROW = st.fixed_dictionaries({name: st.sampled_from(given) for name, (_, given) in VALUES.items()})
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "merge", "compact", "deltalake", "column", "delete"]),
        st.lists(ROW, min_size=1, max_size=3),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


class Scene:
    """A table, by a writer and by deltalake."""

    def __init__(self, path: Path, split: bool) -> None:
        self.path, self.epoch = str(path), 0
        self.writer = ArrowWriter(Tables())
        DeltaTable.create(
            self.path,
            SHAPE,
            partition_by=["part"] if split else None,
            configuration=dict(TABLE_SETTINGS),
        )

    def step(self, kind: str, given: list[dict[str, Any]]) -> None:
        """Make a commit."""
        self.epoch += 1
        rows = [{**row, "id": self.epoch + place} for place, row in enumerate(given)]
        made = pa.Table.from_pylist(rows, schema=SHAPE)
        guard, table = Guard(f"a{self.epoch % 2}", Epoch(self.epoch)), DeltaTable(self.path)
        steps: dict[str, Callable[[], object]] = {
            "append": lambda: self.writer.append(self.path, made, guard),
            "merge": lambda: self.writer.merge(
                self.path, with_op(made, UPSERT), guard, keys=["id"]
            ),
            "compact": lambda: table.optimize.compact(),
            "deltalake": lambda: write_deltalake(table, made, mode="append", schema_mode="merge"),
            "column": lambda: self.writer.append(
                self.path, made.append_column(f"c{self.epoch}", made["id"]), guard
            ),
            "delete": lambda: table.delete(f"id = {self.epoch}"),
        }
        steps[kind]()


def told_by(table: DeltaTable) -> dict[str, object]:
    files = pa.table(table.get_add_actions(flatten=True))
    return {
        "version": table.version(),
        "marks": [table.transaction_version(app) for app in ("a0", "a1", "other")],
        "shape": files.schema,
        # deltalake reads the pair of surrogates of the last character of all as another one.
        "files": sorted(f"{row}".replace(*LAST) for row in files.to_pylist()),
        "rows": table.count(),
        "columns": table.schema().to_json(),
        "settings": table.metadata().configuration,
        "features": table.protocol(),
        "uri": table.table_uri,
        "history": [each.get("operation") for each in table.history(3)],
    }


@settings(max_examples=10)
@given(steps=STEPS, split=st.booleans())
def test_a_handle_says_what_the_log_says(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], split: bool
) -> None:
    scene = Scene(tmp_path_factory.mktemp("handles") / "t", split)
    table = Handle(scene.path)
    for kind, rows, looks in steps:
        scene.step(kind, rows)
        if looks:
            table.update_incremental()
            assert told_by(table) == told_by(DeltaTable(scene.path))
    table.update_incremental()
    assert told_by(table) == told_by(DeltaTable(scene.path))
