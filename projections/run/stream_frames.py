"""A stream as a Spark frame: its typed tables under the columns of one relation."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame

from kernel.errors import NotFound
from lake.layout import Lake
from lake.views import DeltaFrames, Range
from projections.run.relations import LakeCatalog
from projections.sql.shape import INGESTED_AT, ORDER
from schemas.identifiers import spark_name


def stream_frame(
    frames: DeltaFrames, lake: Lake, name: str, catalog: LakeCatalog, ranges: tuple[Range, ...]
) -> DataFrame:
    """Put the typed tables of a stream together. Raises `NotFound` before its first row."""
    relation = catalog.stream(name)
    read = [frames.frame(lake.path(member), *ranges) for member in catalog.members(name)]
    present = [frame for frame in read if frame is not None]
    if relation is None or not present:
        raise NotFound(f"{name} has no rows yet")
    hidden = ["_epoch", "_late", *ORDER, INGESTED_AT]
    types: Mapping[str, str] = {c.name: c.type for c in relation.columns}
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
