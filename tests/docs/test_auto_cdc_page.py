"""The page on AUTO CDC does what it says, and so does the example."""

from __future__ import annotations

import inspect
import os
import re
import runpy
from pathlib import Path

import polars as pl
import pytest
from pyspark.sql import SparkSession

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from projections.auto_cdc import Applied, create_auto_cdc_flow
from tests.architecture.tree import ROOT
from tests.docs.markdown import blocks, table
from tests.support.oracles.change_facts import Fact, typed

PAGE = ROOT / "docs/reference/auto-cdc.md"
EXAMPLE = ROOT / "examples/customers"


@pytest.mark.usefixtures("spark")
def test_the_blocks_of_the_page_make_the_tables_that_it_shows(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run as they stand, in a folder of their own; Spark is the one that runs already."""
    monkeypatch.chdir(Path(lake.root).parent)
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_DIRS"):
        monkeypatch.setenv(name, os.environ[name])
    ann = Fact(operation="c", id=1, name="ann", transaction=1, second=1, hi=1, lo=1, lsn=1)
    source = "typed/shop.public.people"
    ArrowWriter(Tables()).append(lake.path(source), typed([ann], 1), Guard(source, Epoch(1)))
    names: dict[str, object] = {}
    for block in blocks(PAGE):
        if block.language == "python":
            assert block.mark == ("run", ""), block.place
            exec(compile(block.text, block.place, "exec"), names)
    versions = pl.read_delta(lake.path("projection/customer_versions"))
    shown = [
        {name.strip("`"): value for name, value in row.items()} for row in table(PAGE, first="id")
    ]
    found = versions.sort("id", "__START_AT").to_dicts()
    assert [{n: "" if v is None else str(v) for n, v in row.items()} for row in found] == shown
    assert pl.read_delta(lake.path("projection/people")).to_dicts() == [{"id": 1, "name": "ann"}]


def test_the_page_names_every_argument() -> None:
    said = {
        name
        for row in table(PAGE, first="argument")
        for name in re.findall(r"`(\w+)`", row["argument"])
    }
    assert said == set(inspect.signature(create_auto_cdc_flow).parameters)


@pytest.mark.matrix
def test_the_example_may_be_run_again(spark: SparkSession, lake: Lake) -> None:
    customers = runpy.run_path(str(EXAMPLE / "tables.py"))["customers"]
    changes = spark.read.json(str(EXAMPLE / "feed.json"))
    for _ in range(2):
        done: dict[str, Applied] = customers(changes, lake.root)
        assert {(one.changes, one.refused) for one in done.values()} == {(9, 1)}
    people = pl.read_delta(lake.path("projection/customers")).sort("customer_id")
    assert people.select("customer_id", "name", "city").rows() == [
        (1, "Ann", "Rome"),
        (2, "Bo", "Oslo"),
    ]
    versions = pl.read_delta(lake.path("projection/customer_versions"))
    spans = versions.select("customer_id", "city", "__START_AT", "__END_AT").sort(
        "customer_id", "__START_AT"
    )
    assert spans.rows() == [
        (1, "Oslo", 1, 3),
        (1, "Bern", 3, 4),
        (1, "Rome", 4, None),
        (2, "Oslo", 2, 6),
        (2, "Oslo", 6, None),
        (3, "Linz", 2, 5),
    ]
