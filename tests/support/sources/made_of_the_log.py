"""Tables of a lake that are made of its log once more, in another lake."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from lake.layout import Lake
from lake.tables import Tables
from projections.run.captured_tables import CapturedTable, render_tables
from projections.run.catalog import CAPTURE, LIVE, DeployedCatalog, Entry
from replay.book import Replay
from replay.derivations.derivation import Derivation
from replay.subject import Site
from schemas.registry import SchemaLookup
from tests.support.lake.handmade import NoSpark
from tests.support.sources.ddl_rows import SOURCE, TABLE

OF_ITEM = [f"{kind}.{SOURCE}.{TABLE}" for kind in ("typed", "current", "history")]


def no_spark() -> SparkSession:
    return cast(SparkSession, NoSpark())


def site_of(lake: Lake, tmp_path: Path, *, soft: bool = False) -> Site:
    """Return a lake whose source is captured, as another process sees it, with a place beside."""
    captured = CapturedTable(keys=("id",), history=True, soft_deletes=soft)
    text = render_tables({TABLE: captured})
    entry = Entry(kind=CAPTURE, name=SOURCE, generation=1, status=LIVE, text=text)
    DeployedCatalog(lake, Tables()).put([entry])
    return Site(lake=lake, into=Lake.named(tmp_path / "there"))


def build(site: Site, schemas: SchemaLookup, name: str, **options: int) -> Replay:
    """Make a table, whose steps are as short as can be."""
    made = Derivation(
        site,
        schemas,
        lambda _: None,
        spark=no_spark,
        abandoned_after=timedelta(0),
        **{"most_rows": 1, **options},
    )
    return made.build(name)
