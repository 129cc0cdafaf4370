"""Inputs of a plan as Spark frames; a stream is its typed tables under one relation's columns."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from lake.layout import Lake
from lake.ranges import Range
from lake.views import DeltaFrames
from projections.run.input_rows import table_of, without_rows
from projections.run.relations import LakeCatalog
from projections.sql.operators.scope import OF_CHANGES
from projections.sql.operators.shape import INGESTED_AT, ORDER, Input, InputKind
from projections.sql.operators.tree import Scan
from schemas.identifiers import spark_name


def stream_frame(
    frames: DeltaFrames, lake: Lake, name: str, catalog: LakeCatalog, ranges: tuple[Range, ...]
) -> DataFrame:
    """Put the typed tables of a stream together. Raises `NotFound` before its first row."""
    relation = catalog.stream(name)
    read = [frames.frame(lake.path(member), *ranges) for member in catalog.members(name)]
    present = [frame for frame in read if frame is not None]
    if relation is None or not present:
        raise without_rows(name)
    hidden = ["_epoch", "_late", *ORDER, INGESTED_AT]
    changes = () if relation.copied is None else OF_CHANGES
    types: Mapping[str, str] = {c.name: c.type for c in (*relation.columns, *changes)}
    shaped = [
        frame.selectExpr(
            *(
                f"CAST({spark_name(n)} AS {t}) AS {spark_name(n)}"
                if n in frame.columns
                else f"CAST(NULL AS {t}) AS {spark_name(n)}"
                for n, t in types.items()
            ),
            *hidden,
        )
        for frame in present
    ]
    union = shaped[0]
    for frame in shaped[1:]:
        union = union.unionByName(frame)
    return union


def input_frame(
    frames: DeltaFrames,
    lake: Lake,
    read: Scan | Input,
    catalog: LakeCatalog,
    ranges: tuple[Range, ...],
    *,
    late: bool = True,
    version: int | None = None,
) -> DataFrame:
    """Return an input's rows within all ranges: of a stream without `late` those that came in time,
    of a table those that it had at a version, its newest where none is asked for.

    Raises `NotFound` before the first row.
    """
    if read.kind is InputKind.STREAM:
        frame = stream_frame(frames, lake, read.name, catalog, ranges)
        return frame if late else frame.filter("NOT _late")
    name = table_of(read)
    found = frames.frame(lake.path(name), *ranges, version=version)
    if found is None:
        raise without_rows(name)
    return found
