"""Slices of builds by DuckDB in this process and by Spark: the same slices, with the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from kernel import failpoints
from lake.sessions import SparkOnDemand
from lake.tables import Tables
from pipeline.executor import Executor, ExecutorChoice
from projections.run.database import without_zones
from projections.run.spark_hashes import hash_sql, register_hashes
from projections.sql.words.catalog import Column
from projections.sql.words.duckdb_types import duckdb_type
from replay.book import State
from replay.build import Builder
from replay.cancel import cancel
from replay.generations import generation_name
from replay.verify import verify
from tests.support.lake.small_lake import FINAL, PROJECTIONS, STEPS, SmallLake, fill

QUICK = ("visits", "closed")
"""One of several steps, one of final rows; others repeat them."""

KEPT_SIDES = ("worst",)
"""What slices of these would compute anew each time, Spark keeps."""


@pytest.fixture(autouse=True)
def _harmless_afterwards() -> Iterator[None]:
    yield
    failpoints.disarm()


def a_builder(small: SmallLake, executor: Executor) -> Builder:
    def refused() -> SparkSession:
        raise AssertionError("Spark is not needed")

    return Builder(
        SparkOnDemand(refused) if executor is Executor.DRIVER else small.spark,
        small.site,
        lambda _: None,
        record_every_s=0.0,
        abandoned_after=timedelta(0),
        choice=ExecutorChoice(asked=executor),
    )


def rows_built(small: SmallLake, name: str, generation: int) -> pa.Table:
    """Return the rows of a generation, in the order of all that they hold but lists."""
    found = Tables().read(small.lake.path(generation_name(name, generation)))
    assert found is not None
    ordered = [field.name for field in found.schema if not pa.types.is_list(field.type)]
    return found.sort_by([(each, "ascending") for each in ordered])


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.matrix)
        for name in (*PROJECTIONS, *STEPS, *FINAL)
    ],
)
def test_p6_both_executors_build_the_same_bits(small: SmallLake, name: str) -> None:
    fill(small, name)
    if name in FINAL:
        small.epoch(seen_up_to=100_000)
        small.run(name)
    made: dict[tuple[Executor, int | None], pa.Table] = {}
    forms = [(Executor.DRIVER, None), (Executor.DRIVER, 3), (Executor.SPARK, 2)]
    if name in KEPT_SIDES:
        forms.remove((Executor.DRIVER, 3))
    for executor, slices in forms:
        built = a_builder(small, executor).build(name, slices=slices)
        assert built.state is State.BUILT
        assert verify(small.site, name).equal
        made[executor, slices] = rows_built(small, name, built.generation)
        cancel(small.site, name)
    one, *others = made.values()
    assert one.num_rows
    for other in others:
        assert other.schema.equals(one.schema)
        assert other.equals(one)


@pytest.mark.parametrize(
    ("before", "after"),
    [(Executor.DRIVER, Executor.SPARK), (Executor.SPARK, Executor.DRIVER)],
)
def test_p6_another_executor_goes_on_with_the_slices_of_one_that_died(
    small: SmallLake, before: Executor, after: Executor
) -> None:
    fill(small, "latest")
    failpoints.arm(failpoints.REPLAY_BEFORE_SLICE, hit=3)
    with pytest.raises(failpoints.Crash):
        a_builder(small, before).build("latest", slices=4)
    failpoints.disarm()
    assert a_builder(small, after).build("latest").state is State.BUILT
    assert verify(small.site, "latest").equal


VALUES: list[tuple[str, pa.DataType, list[object]]] = [
    ("BOOLEAN", pa.bool_(), [True, False, None]),
    ("TINYINT", pa.int8(), [0, 1, -128, 127, None]),
    ("SMALLINT", pa.int16(), [0, -1, 2**15 - 1]),
    ("INT", pa.int32(), [0, -1, 2**31 - 1, -(2**31), None]),
    ("BIGINT", pa.int64(), [0, -1, 2**63 - 1, -(2**63), None]),
    ("DATE", pa.date32(), [date(1970, 1, 1), date(1, 1, 1), date(9999, 12, 31), None]),
    (
        "TIMESTAMP",
        pa.timestamp("us", "UTC"),
        [datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), datetime(2262, 5, 1, tzinfo=UTC), None],
    ),
    (
        "DECIMAL(18,4)",
        pa.decimal128(18, 4),
        [Decimal("-0.5"), Decimal("99999999999999.9999"), None],
    ),
    ("DECIMAL(5,0)", pa.decimal128(5, 0), [Decimal(-12345), Decimal(0)]),
    (
        "STRING",
        pa.string(),
        [None, *(text[:n] for text in ("abcdefgh" * 20, "ä€😀" * 30) for n in (*range(70), 90))],
    ),
]


@pytest.mark.parametrize(("kind", "arrow", "values"), VALUES, ids=[each[0] for each in VALUES])
def test_hashes_are_those_of_spark(
    spark: SparkSession, kind: str, arrow: pa.DataType, values: list[object]
) -> None:
    rows = pa.table({"v": pa.array(values, arrow), "w": pa.array([*map(str, range(len(values)))])})
    spark.createDataFrame(rows).createOrReplaceTempView("hashed")
    wanted = spark.sql("SELECT w, xxhash64(v) AS a, xxhash64(w, v) AS b FROM hashed").toArrow()
    v, w = Column(name="v", type=kind), Column(name="w", type="STRING")
    with duckdb.connect() as connection:
        register_hashes(connection)
        connection.register("given", without_zones(rows))
        found = connection.sql(
            f"SELECT w, {hash_sql([v])} AS a, {hash_sql([w, v])} AS b "
            f"FROM (SELECT w, CAST(v AS {duckdb_type(kind)}) AS v FROM given)"
        ).to_arrow_table()
    assert sorted(found.to_pylist(), key=repr) == sorted(wanted.to_pylist(), key=repr)
