"""What every `StagedMerge` promises: Spark gives what Arrow does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from kernel.errors import NotFound
from kernel.positions import DeltaVersion, Epoch
from lake.datasets import dataset_of
from lake.executor_tasks import Executors, SparkTasks, TasksHere
from lake.layers import marked
from lake.layout import Lake, current_name
from lake.tables import Tables
from lake.writer import DELETE, OP, UPSERT, ArrowWriter, Guard
from pipeline.current import image_stager, staged_images
from pipeline.current.bucketed_merge import BucketedMerge
from pipeline.current.staged_images import ArrowStagedMerge, SparkStagedMerge, StagedMerge
from pipeline.current.tables import CurrentTables
from pipeline.log.large_folds import LogRows, slices
from schemas.registry import MemoryRegistry
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

Row = tuple[int, str, str]


@pytest.fixture
def tables() -> Tables:
    return Tables()


class Never:
    """Stands where what does not suit the buckets is merged."""

    def __call__(
        self, path: str, staged: str, guard: Guard, keys: Sequence[str], *, replace: bool
    ) -> DeltaVersion:
        raise AssertionError(f"{path} suits the buckets")


EACH = ("arrow", "spark", "buckets", "buckets on executors")


@pytest.fixture(params=EACH)
def merge(request: pytest.FixtureRequest, spark: SparkSession, tables: Tables) -> StagedMerge:
    match request.param:
        case "arrow":
            return ArrowStagedMerge(tables)
        case "spark":
            return SparkStagedMerge(spark, tables)
        case "buckets":
            return BucketedMerge(tables, TasksHere(), otherwise=Never())
        case _:
            return BucketedMerge(tables, SparkTasks(spark), otherwise=Never(), parts=3)


@pytest.fixture
def executors(merge: StagedMerge, spark: SparkSession) -> Executors:
    """Return who reads the slices: where Spark merges, its executors."""
    if isinstance(merge, ArrowStagedMerge):
        return Executors()
    return Executors(tasks=SparkTasks(spark))


def stage(tables: Tables, path: str, *parts: Sequence[Row]) -> None:
    for number, part in enumerate(parts, start=1):
        rows = pa.table(
            {
                "id": pa.array([i for i, _, _ in part], pa.int64()),
                "name": pa.array([name for _, name, _ in part], pa.string()),
                OP: pa.array([op for _, _, op in part], pa.string()),
            }
        )
        guard = Guard("staging", Epoch(number))
        ArrowWriter(tables).append(path, marked(rows, ["id"], number), guard)


def stored(path: str) -> list[tuple[int, str]]:
    rows = Tables().read(path)
    assert rows is not None
    return sorted((row["id"], row["name"]) for row in rows.to_pylist())


def test_the_newest_staged_image_of_a_key_wins(
    merge: StagedMerge, tables: Tables, tmp_path: Path
) -> None:
    path, staged = str(tmp_path / "t"), str(tmp_path / "s")
    base = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "name": ["a", "b", "c"]})
    ArrowWriter(tables).append(path, base, Guard("t", Epoch(1)))
    first = [(1, "A", UPSERT), (2, "B", UPSERT), (4, "D", UPSERT)]
    stage(tables, staged, first, [(1, "AA", UPSERT), (2, "", DELETE)])
    version = merge(path, staged, Guard("t", Epoch(2)), ["id"], replace=False)
    assert stored(path) == [(1, "AA"), (3, "c"), (4, "D")]
    assert merge(path, staged, Guard("t", Epoch(2)), ["id"], replace=False) == version


@pytest.mark.matrix
def test_what_is_staged_may_be_the_whole_table(
    merge: StagedMerge, tables: Tables, tmp_path: Path
) -> None:
    path, staged = str(tmp_path / "t"), str(tmp_path / "s")
    stage(tables, staged, [(1, "a", UPSERT), (2, "b", UPSERT)], [(2, "", DELETE)])
    merge(path, staged, Guard("t", Epoch(1)), ["id"], replace=True)
    assert stored(path) == [(1, "a")]
    table = tables.open(path)
    assert table is not None
    assert table.transaction_version("t") == 1


@pytest.mark.parametrize(
    "merge",
    # One by MERGE is enough where executors fold the same transaction by buckets.
    [pytest.param(name, marks=[pytest.mark.matrix] * (name == "spark")) for name in EACH],
    indirect=True,
)
def test_p4_a_large_transaction_is_folded_by_either(
    merge: StagedMerge,
    executors: Executors,
    tables: Tables,
    lake: Lake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = slices
    monkeypatch.setattr(image_stager, "slices", lambda rows: cut(rows, most=400))
    monkeypatch.setattr(staged_images, "FEW_ROWS", 0)
    before = [Done("c", i, "a", f"n{i}", i) for i in range(500)]
    done = [Done("u", i % 700, "a", f"m{i}", i) for i in range(1_500)]
    done += [Done("d", i, "a") for i in range(0, 700, 7)]
    left = [Done("u", i, "a", None, -i) for i in range(1, 700) if i % 7]
    current = CurrentTables(lake, tables, registry(), large=merge, executors=executors)
    current.fold(SOURCE, TABLE, changes(before, first=1), Epoch(1))
    state: State = apply({}, before)
    first = len(before) + 1
    for epoch, each in ((2, done), (3, left)):
        log = lake.path(f"log/changes/{epoch}")
        rows = changes(each, first=first)
        ArrowWriter(tables).append(log, rows, Guard("log", Epoch(epoch)))
        table = tables.open(log)
        assert table is not None
        large = LogRows(dataset_of(table), pc.field("table") == TABLE)
        current.fold_large(SOURCE, TABLE, large, Epoch(epoch))
        first += len(each)
        state = apply(state, each)
        assert state_of(Tables().read(lake.path(current_name(SOURCE, TABLE)))) == state
    current.close()


def test_an_error_comes_back_from_spark_as_it_was(
    merge: StagedMerge, executors: Executors, tables: Tables, lake: Lake
) -> None:
    log = lake.path("log/changes/1")
    rows = changes([Done("c", 1)], first=1)
    ArrowWriter(tables).append(log, rows, Guard("log", Epoch(1)))
    table = tables.open(log)
    assert table is not None
    large = LogRows(dataset_of(table), pc.field("table") == TABLE)
    current = CurrentTables(lake, tables, MemoryRegistry(), large=merge, executors=executors)
    with pytest.raises(NotFound, match="no schema with id"):
        current.fold_large(SOURCE, TABLE, large, Epoch(1))
    current.close()
