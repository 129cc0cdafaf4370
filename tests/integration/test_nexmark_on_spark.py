"""Nexmark's queries in one batch on Spark, as a build computes them: the oracle's rows."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from pipeline.typed.topics import typed_topic
from projections.run.matchers import register_functions
from projections.sql.operators.shape import InputKind
from tests.support.lake.auction_house import (
    EPOCHS,
    AuctionHouse,
    filled_house,
    planned,
    side_input_at,
)
from tests.support.oracles.nexmark import QUERIES, answer
from tests.support.oracles.region_world import plain
from tests.support.oracles.sql_world import canonical

OFTEN = ("q21",)
"""Looks by a pattern, which two engines read differently, so it is tested with every change."""
LAST = max(EPOCHS)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> AuctionHouse:
    return filled_house(tmp_path_factory.mktemp("auctions"), 7)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.matrix] * (n not in OFTEN)) for n in QUERIES]
)
def test_nexmark_on_spark_equals_the_batch(
    name: str, house: AuctionHouse, spark: SparkSession
) -> None:
    made, session = planned(name), spark.newSession()
    for read in made.inputs:
        stream = read.kind is InputKind.STREAM
        table = typed_topic(read.name.removeprefix("topics.")) if stream else f"history/{read.name}"
        rows = house.tables.read(house.lake.path(table))
        assert rows is not None
        if stream and made.stateful:
            rows = rows.filter(pc.invert(rows["_late"]))
        session.createDataFrame(rows).createOrReplaceTempView(read.view)
    names = {each.name for each in made.columns}
    register_functions(session, made.tree)
    found = session.sql(made.rows_sql).toArrow().to_pylist()
    rows_now = [{n: plain(v) for n, v in row.items() if n in names} for row in found]
    wanted = answer(name, house.facts(LAST), side_input_at(LAST))
    assert wanted
    assert canonical(rows_now) == canonical(wanted)
