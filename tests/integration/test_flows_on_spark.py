"""Spark reads the changes of a captured table as the pipeline's own engine does."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from lake.layout import Lake
from lake.tables import Tables
from lake.views import DeltaFrames
from projections.run.stream_frames import stream_frame
from tests.unit.test_flows_of_captured_tables import CHANGES, FLOW, reading


def test_what_a_change_did_and_its_lsn_are_read_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    _, read = reading(tmp_path, FLOW)
    frames = DeltaFrames(spark, Tables())
    frame = stream_frame(frames, Lake.at(tmp_path), "shop.public.people", read.catalog, ())
    found = [(r["id"], r["name"], r["_operation"], r["_lsn"]) for r in frame.collect()]
    assert sorted(found, key=repr) == sorted(CHANGES, key=repr)
