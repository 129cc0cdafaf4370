"""Rows whose types differ from the table's: values are stored as they are, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from kernel.errors import Incompatible
from kernel.positions import Epoch
from projections.log.tables import Tables
from projections.log.writer import UPSERT, ArrowWriter, Guard, with_op

MOMENT = pa.timestamp("us", "UTC")
LOST = [
    (pa.int32(), 1, pa.float64(), 1.75),
    (pa.int32(), 1, pa.int64(), 2**40),
    (pa.int64(), 1, pa.decimal128(20, 4), Decimal("1.7555")),
    (pa.decimal128(10, 2), Decimal("1.00"), pa.decimal128(20, 4), Decimal("1.7555")),
    (pa.float64(), 1.5, pa.int64(), 2**53 + 1),
    (pa.date32(), 1, MOMENT, datetime(2013, 1, 1, 5, tzinfo=UTC)),
    (pa.int64(), 1, pa.string(), "one"),
    (pa.struct([("a", pa.int32())]), {"a": 1}, pa.struct([("a", pa.float64())]), {"a": 1.75}),
    (pa.list_(pa.int32()), [1], pa.list_(pa.float64()), [1.75]),
]
HELD = [
    (pa.int64(), 1, pa.int32(), 2),
    (pa.float64(), 1.5, pa.int32(), 2),
    (pa.int32(), 1, pa.null(), None),
    (pa.string(), "a", pa.large_string(), "b"),
    (pa.string(), "a", pa.string_view(), "b"),
    (pa.decimal128(20, 4), Decimal("1.7555"), pa.decimal128(10, 2), Decimal("2.50")),
    (pa.struct([("a", pa.int64())]), {"a": 1}, pa.struct([("a", pa.int32())]), {"a": 2}),
]


def rows(number: int, kind: pa.DataType, value: object) -> pa.Table:
    return pa.table({"id": pa.array([number], pa.int64()), "x": pa.array([value], kind)})


def written(path: str, how: str, more: pa.Table, epoch: int) -> None:
    writer, guard = ArrowWriter(Tables()), Guard("t", Epoch(epoch))
    if how == "append":
        writer.append(path, more, guard)
    else:
        writer.merge(path, with_op(more, UPSERT), guard, keys=["id"])


def stored(path: str) -> list[object]:
    found = Tables().read(path)
    assert found is not None
    return [row["x"] for row in sorted(found.to_pylist(), key=lambda row: row["id"])]


@pytest.mark.parametrize("how", ["append", "merge"])
@pytest.mark.parametrize(
    ("kind", "first", "other", "value"), LOST, ids=[f"{c[0]}-{c[2]}" for c in LOST]
)
def test_values_that_a_column_does_not_hold_are_refused(
    tmp_path: Path, how: str, kind: pa.DataType, first: object, other: pa.DataType, value: object
) -> None:
    path = str(tmp_path / "table")
    written(path, "append", rows(1, kind, first), 1)
    before = stored(path)
    with pytest.raises(Incompatible, match=r"column x of .* as they are") as refused:
        written(path, how, rows(2, other, value), 2)
    assert "penstock replay apply" in str(refused.value.remedy)
    assert stored(path) == before


@pytest.mark.parametrize("how", ["append", "merge"])
@pytest.mark.parametrize(
    ("kind", "first", "other", "value"), HELD, ids=[f"{c[0]}-{c[2]}" for c in HELD]
)
def test_values_of_another_type_that_a_column_holds_are_stored(
    tmp_path: Path, how: str, kind: pa.DataType, first: object, other: pa.DataType, value: object
) -> None:
    path = str(tmp_path / "table")
    written(path, "append", rows(1, kind, first), 1)
    written(path, how, rows(2, other, value), 2)
    assert stored(path) == [first, value]
