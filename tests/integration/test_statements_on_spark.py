"""Statements over odd values: what Spark gives as they are written, compiled, and in small."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from projections.run.database import TEXT
from projections.run.matchers import register_totals
from projections.run.spark_scalars import register_scalars
from projections.sql.operators.tree import scans
from projections.sql.plans.key_steps import rows_sql
from projections.sql.plans.plan import Plan
from tests.integration.test_scalars_on_spark import plain, table
from tests.integration.test_sql_spark import _over
from tests.support.oracles.statement_values import (
    FRAMES,
    ORDERED_FRAMES,
    STATEMENT_KINDS,
    VALUES,
    aggregates,
    choices,
    frames,
    percentiles,
    ranks,
    statement_rows,
)


class _Engines:
    """The same rows in Spark and in DuckDB, as they are and as the compiled text reads them."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        register_totals(spark)
        self._rows = table(STATEMENT_KINDS, statement_rows())
        spark.createDataFrame(self._rows).createOrReplaceTempView("statement_rows")
        count = self._rows.num_rows
        times = [datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=n) for n in range(count)]
        placed = self._rows.append_column("_time", pa.array(times, pa.timestamp("us", "UTC")))
        placed = placed.append_column("_seq_hi", pa.array(range(count), pa.int64()))
        self._placed = placed.append_column("_seq_lo", pa.array([0] * count, pa.int64()))
        self.small = duckdb.connect()
        register_scalars(self.small)

    def compare(self, key: str, written: str) -> bool:
        """Compare what three computations give: types, and rows by their bits.

        Say whether the small one was among them.
        """
        query = written.format(r="FROM STREAM r", j="STREAM r")
        made = _over(query, STATEMENT_KINDS, key=key)
        self._register(made)
        theirs = self.spark.sql(written.format(r="FROM statement_rows", j="statement_rows"))
        expected = _known(theirs.toArrow(), key)
        names = ", ".join(each.name for each in made.columns)
        compiled = self.spark.sql(f"SELECT {names} FROM ({made.rows_sql}) AS t").toArrow()
        self._same(_known(compiled, key), expected, "compiled", written)
        if made.small:
            text = f"SELECT {names} FROM ({rows_sql(made.tree, TEXT)}) AS t"
            ours = self.small.sql(text).to_arrow_table()
            self._same(_known(ours, key).cast(expected.schema), expected, "in small", written)
        return made.small

    def _register(self, made: Plan) -> None:
        for scan in scans(made.tree):
            self.spark.createDataFrame(self._placed).createOrReplaceTempView(scan.view)
            moments = [f.with_type(pa.timestamp("us")) for f in self._placed.schema]
            schema = pa.schema(
                [
                    moment if pa.types.is_timestamp(field.type) else field
                    for field, moment in zip(self._placed.schema, moments, strict=True)
                ]
            )
            self.small.register(scan.view, self._placed.cast(schema))

    def _same(self, found: pa.Table, expected: pa.Table, where: str, written: str) -> None:
        assert found.schema.names == expected.schema.names
        for name in found.schema.names:
            kinds = (found.schema.field(name).type, expected.schema.field(name).type)
            assert kinds[0] == kinds[1], f"{where}: {name} of {written}"
        columns = [(plain(found[n]), plain(expected[n])) for n in found.schema.names]
        mine, spark = (
            Counter(map(repr, zip(*side, strict=True))) for side in zip(*columns, strict=True)
        )
        assert mine - spark == spark - mine, f"{where}: {written}"


def _known(rows: pa.Table, key: str) -> pa.Table:
    """Leave out rows whose key holds a NULL: they are in no table."""
    for name in key.split(", "):
        rows = rows.filter(pc.is_valid(rows[name]))
    return rows


@pytest.fixture(scope="module")
def engines(spark: SparkSession) -> Iterator[_Engines]:
    made = _Engines(spark.newSession())
    yield made
    made.small.close()


def _listed(calls: Iterator[str]) -> str:
    return ", ".join(f"{call} AS v{place}" for place, call in enumerate(dict.fromkeys(calls)))


def _compare_groups(engines: _Engines, calls: Iterator[str], *, small: bool = True) -> None:
    # Beside distinct values Spark itself fails on the order of a list.
    alone, each_once = [], []
    for call in calls:
        (each_once if "DISTINCT" in call else alone).append(call)
    for some in filter(None, (alone, each_once)):
        written = f"SELECT g, {_listed(iter(some))} {{r}} GROUP BY g"
        assert engines.compare("g", written) is small


def test_aggregates_have_the_values_of_spark(engines: _Engines) -> None:
    _compare_groups(engines, (call for c in "xis" for call in aggregates(c)))
    _compare_groups(engines, (call for c in "xi" for call in percentiles(c)))


@pytest.mark.matrix
def test_aggregates_of_other_types_have_the_values_of_spark(engines: _Engines) -> None:
    _compare_groups(engines, (call for c in VALUES if c not in "xis" for call in aggregates(c)))
    _compare_groups(engines, (call for c in "np" for call in percentiles(c)))
    _compare_groups(engines, (call for c in "oh" for call in percentiles(c)), small=False)


@pytest.mark.matrix
def test_parts_of_fifty_rows_are_those_of_spark(engines: _Engines) -> None:
    # As doubles 0.14 and 0.58 of them are a little more and a little less than 7 and 29.
    parts = ((f"{part})", order) for part in (0, 0.14, 0.3, 0.58, 1) for order in ("k", "k DESC"))
    calls = [
        f"PERCENTILE_{word}({part} WITHIN GROUP (ORDER BY {order})"
        for part, order in parts
        for word in ("DISC", "CONT")
    ]
    calls += ["percentile_approx(k, 0.14)", f"{calls[6]} FILTER (WHERE b)"]
    written = f"SELECT 'a' AS a, {_listed(iter(calls))} {{r}} WHERE k < 50 GROUP BY 'a'"
    assert engines.compare("a", written)
    over = _listed(f"{call} OVER (PARTITION BY g)" for call in calls)
    assert engines.compare("k", f"SELECT k, {over} {{r}}")


def test_sets_of_groups_are_told_as_spark_tells_them(engines: _Engines) -> None:
    told = "GROUPING(g) AS og, GROUPING(b) AS ob, GROUPING_ID(g, b) AS bits, GROUPING_ID() AS id"
    groups = "coalesce(g, 'none') AS l, coalesce(CAST(b AS STRING), 'none') AS m"
    written = f"SELECT {groups}, {told}, SUM(p) AS s {{r}} GROUP BY CUBE (g, b)"
    assert engines.compare("l, m, bits", written)


@pytest.mark.parametrize(
    "around",
    [
        pytest.param(
            each, marks=[pytest.mark.matrix] * (each != f"PARTITION BY g {ORDERED_FRAMES[0]}")
        )
        for each in FRAMES
    ],
)
def test_frames_have_the_values_of_spark(engines: _Engines, around: str) -> None:
    assert engines.compare("k", f"SELECT k, {_listed(frames(around))} {{r}}")


@pytest.mark.parametrize(
    "column", [pytest.param(c, marks=[pytest.mark.matrix] * (c != "x")) for c in VALUES]
)
def test_rows_are_told_apart_as_spark_tells_them(engines: _Engines, column: str) -> None:
    engines.compare("k", f"SELECT k, {_listed(ranks(column))} {{r}}")


@pytest.mark.matrix
def test_doubles_are_compared_as_spark_compares_them(engines: _Engines) -> None:
    for key, written in choices("x"):
        engines.compare(key, written)
