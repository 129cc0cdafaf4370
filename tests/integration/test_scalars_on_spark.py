"""Functions that the small executor computes: the bits and the types of Spark, at odd values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from sqlglot import exp

from projections.run.dataflow import arrow_type
from projections.run.spark_scalars import register_scalars
from projections.sql.rendering.certified import uncertified_in
from projections.sql.rendering.duckdb_text import DuckText
from projections.sql.values.expressions import render
from projections.sql.values.types import type_of
from projections.sql.words.catalog import Column
from projections.sql.words.tokens import SPARK
from tests.support.oracles.scalar_values import EXPRESSIONS, KINDS, Row, rows, written

ALL_LETTERS = [chr(c) for c in range(0x30000) if not 0xD800 <= c < 0xE000]


def parsed(text: str) -> exp.Expr:
    (select,) = SPARK.parser().parse(SPARK.tokenize(f"SELECT {text}"), "")
    assert select is not None
    node: exp.Expr = select.expressions[0]
    return node


def table(kinds: dict[str, str], values: Sequence[Row]) -> pa.Table:
    types = {name: arrow_type(Column(name=name, type=kind)) for name, kind in kinds.items()}
    return pa.table(
        {
            name: pa.array([row[name] for row in values], pa.string()).cast(kind)
            if pa.types.is_decimal(kind)
            else pa.array([row[name] for row in values], kind)
            for name, kind in types.items()
        }
    )


def plain(column: pa.ChunkedArray) -> list[object]:
    """Return values that are equal where their bits are, years beyond Python's among them."""
    if pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return [one.hex() if isinstance(one, float) else one for one in column.to_pylist()]


def compare(
    spark: SparkSession, folder: Path, kinds: dict[str, str], data: pa.Table, texts: Sequence[str]
) -> None:
    columns = tuple(Column(name=name, type=kind) for name, kind in kinds.items())
    nodes = [parsed(text) for text in texts]
    for text, node in zip(texts, nodes, strict=True):
        assert uncertified_in(node, columns) is None, text
    pq.write_table(data, folder / "rows.parquet")
    spark.read.parquet(str(folder / "rows.parquet")).createOrReplaceTempView("scalar_rows")
    items = ", ".join(f"{render(node)} AS v{i}" for i, node in enumerate(nodes))
    theirs = spark.sql(f"SELECT {items} FROM scalar_rows").toArrow()
    without_zone = data.cast(
        pa.schema(
            [
                field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field
                for field in data.schema
            ]
        )
    )
    with duckdb.connect() as connection:
        register_scalars(connection)
        connection.register("scalar_rows", without_zone)
        ours = [f"{DuckText().expression(n, columns)} AS v{i}" for i, n in enumerate(nodes)]
        mine = connection.sql(f"SELECT {', '.join(ours)} FROM scalar_rows").to_arrow_table()
    for i, (text, node) in enumerate(zip(texts, nodes, strict=True)):
        kind = theirs.schema.field(f"v{i}").type
        told = type_of(node, lambda found: kinds[found.name])
        assert arrow_type(Column(name="v", type=told)) == kind, text
        assert plain(mine[f"v{i}"].cast(kind)) == plain(theirs[f"v{i}"]), text


@pytest.fixture(scope="module")
def sql_spark(spark: SparkSession) -> SparkSession:
    session: SparkSession = spark.newSession()
    return session


def test_every_function_gives_the_bits_of_spark(sql_spark: SparkSession, tmp_path: Path) -> None:
    compare(sql_spark, tmp_path, KINDS, table(KINDS, rows()), [*written(EXPRESSIONS)])


def test_all_letters_have_the_case_that_spark_gives_them(
    sql_spark: SparkSession, tmp_path: Path
) -> None:
    draw = random.Random(5)
    letters = "aΣ\u03c3ς. '\u00adĲİ\u0131ßﬁ1A-_\u0301"
    texts = ["".join(draw.choices(letters, k=draw.randint(1, 6))) for _ in range(5_000)]
    data = pa.table({"s": [*ALL_LETTERS, *texts]})
    compare(sql_spark, tmp_path, {"s": "STRING"}, data, ["upper(s)", "lower(s)", "reverse(s)"])


def test_doubles_are_rounded_as_spark_rounds_them(sql_spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(5)
    numbers = [draw.uniform(-1, 1) * 10 ** draw.randint(-8, 15) for _ in range(20_000)]
    numbers += [draw.randint(-(10**6), 10**6) / 1000 + 0.0005 for _ in range(10_000)]
    numbers += [draw.randint(-(10**9), 10**9) / 10 ** draw.randint(0, 9) for _ in range(20_000)]
    texts = [f"round(x, {places})" for places in (0, 1, 2, 3, 6)]
    compare(sql_spark, tmp_path, {"x": "DOUBLE"}, pa.table({"x": numbers}), texts)


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("CAST(z AS INT)", {"z": "1.5"}),
        ("CAST(z AS BIGINT)", {"z": "9223372036854775808"}),
        ("CAST(z AS DOUBLE)", {"z": "one"}),
        ("CAST(f AS DATE)", {"f": "2021-02-29"}),
        ("CAST(f AS TIMESTAMP)", {"f": "2021-01-01 25:00:00"}),
        ("CAST(x AS INT)", {"x": 2.0**31}),
        ("CAST(n AS INT)", {"n": 2**31}),
        ("p / q", {"p": "1.00", "q": "0.00000000"}),
        ("pmod(n, m)", {"n": 1, "m": 0}),
    ],
)
def test_what_spark_refuses_is_an_error(text: str, row: Row) -> None:
    columns = tuple(Column(name=name, type=kind) for name, kind in KINDS.items())
    data = table(KINDS, [dict.fromkeys(KINDS) | row])
    query = f"SELECT {DuckText().expression(parsed(text), columns)} FROM r"
    with duckdb.connect() as connection:
        register_scalars(connection)
        connection.register("r", data)
        with pytest.raises(duckdb.Error):
            connection.execute(query)
