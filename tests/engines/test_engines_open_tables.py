"""The tables are plain Delta: other engines open them without Penstock and see the same rows."""

from __future__ import annotations

from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.views import DeltaFrames
from lake.writer import ArrowWriter, Guard
from replay.build import Builder
from replay.subject import typed_head
from tests.support.lake.small_lake import PROJECTIONS, SmallLake, some_departures, some_readings
from tests.support.lake.swaps import swap

NAMES = tuple(PROJECTIONS)


@pytest.fixture(scope="module")
def small(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> SmallLake:
    made = SmallLake(spark, Lake.at(tmp_path_factory.mktemp("engines") / "lake"))
    made.deploy(*NAMES)
    for first in (1, 31):
        made.epoch(some_departures(first, first, 30), some_readings(first, first, 10))
        made.run("latest")
        made.run("delays")
    return made


def counts(small: SmallLake, name: str) -> dict[str, tuple[int, int]]:
    """Rows and sum of `_epoch`, as each engine sees the table."""
    path = small.lake.path(name)
    table = DeltaTable(path)
    dataset = table.to_pyarrow_dataset()
    frame = polars.read_delta(path)
    datafusion = QueryBuilder().register("t", table)
    answer = datafusion.execute("SELECT count(*) AS n, sum(_epoch) AS e FROM t").read_all()
    spark_frame = small.spark.read.format("delta").load(path)
    in_spark = spark_frame.selectExpr("count(*) AS n", "sum(_epoch) AS e").first()
    assert in_spark is not None
    (in_duckdb,) = duckdb.sql("SELECT count(*), sum(_epoch)::bigint FROM dataset").fetchall()
    pandas = table.to_pandas()
    return {
        "spark": (in_spark["n"], in_spark["e"]),
        "duckdb": (in_duckdb[0], in_duckdb[1]),
        "polars": (frame.height, int(frame["_epoch"].sum())),
        "pandas": (len(pandas), int(pandas["_epoch"].sum())),
        "datafusion": (answer["n"][0].as_py(), answer["e"][0].as_py()),
        "deltalake": (dataset.count_rows(), sum(dataset.to_table()["_epoch"].to_pylist())),
    }


@pytest.mark.parametrize(
    "name",
    [
        "typed/events.flight.departed",
        "history/weather",
        "projection/latest",
        pytest.param("projection/windy", marks=pytest.mark.matrix),
    ],
)
def test_p10_every_engine_sees_the_same_table(name: str, small: SmallLake) -> None:
    if name == "projection/windy":
        small.run("windy")
    seen = counts(small, name)
    assert len(set(seen.values())) == 1, seen
    assert seen["spark"][0] > 0


def test_p10_every_engine_sees_a_swapped_generation_whole(small: SmallLake) -> None:
    builder = Builder(small.spark, small.site, lambda _: None)
    builder.build("delays")
    before = len(small.rows("projection/delays"))
    swap(small.site, "delays", lambda r: builder.catch_up(r, typed_head(small.site)))
    seen = counts(small, "projection/delays")
    assert len(set(seen.values())) == 1, seen
    assert seen["spark"][0] == before


def test_spark_reads_files_of_a_folder_that_looks_like_a_pattern(
    tmp_path: Path, spark: SparkSession
) -> None:
    path, tables = str(tmp_path / "lake [eu] {1}" / "t"), Tables()
    ArrowWriter(tables).append(path, pa.table({"id": [1, 2]}), Guard("t", Epoch(1)))
    frame = DeltaFrames(spark, tables).frame(path)
    assert frame is not None
    assert sorted(row.id for row in frame.collect()) == [1, 2]
