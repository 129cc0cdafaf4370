"""Small batches of records are decoded together, none is lost, and all stay in their order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pipeline.decode import records
from pipeline.decode.records import put_together


def batches(*sizes: int) -> list[pa.RecordBatch]:
    """Return batches whose rows are counted through."""
    made, first = [], 0
    for size in sizes:
        made.append(
            pa.RecordBatch.from_pydict({"n": pa.array(range(first, first + size), pa.int64())})
        )
        first += size
    return made


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((0,), []),
        ((3, 3, 3, 3), [12]),
        ((3, 3, 4, 1), [10, 1]),
        ((25, 2), [25, 2]),
        ((0, 4, 0), [4]),
    ],
)
def test_batches_are_put_together_up_to_a_bound(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], expected: list[int]
) -> None:
    monkeypatch.setattr(records, "AT_ONCE_ROWS", 10)
    found = [*put_together(iter(batches(*sizes)))]
    assert [batch.num_rows for batch in found if batch.num_rows] == expected
    assert [n for batch in found for n in batch["n"].to_pylist()] == [*range(sum(sizes))]


def test_large_records_are_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "AT_ONCE_BYTES", 100)
    assert [b.num_rows for b in put_together(iter(batches(20, 20, 5)))] == [20, 20, 5]
