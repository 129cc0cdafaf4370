"""Delta tables as Spark frames, read by the files that the table's log names.

Spark's own Delta reader runs jobs to build a snapshot whenever a table has a new version, which
costs more than the queries on the small tails that projections read. deltalake follows the log in
about a millisecond; the files it names are read by Spark as Parquet. Files that statistics rule
out are not read at all. Correct for the tables that Penstock writes: no deletion vectors, no
column mapping, no partition columns.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, functions
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from lake.datasets import location_of, schema_of
from lake.ranges import Range, actions_within
from lake.sessions import Spark, SparkOnDemand
from lake.tables import Tables


class DeltaFrames:
    """Opens tables of one lake as Spark frames at their newest version."""

    def __init__(self, spark: Spark, tables: Tables) -> None:
        self._spark = SparkOnDemand.of(spark)
        self._tables = tables

    def frame(self, path: str, *ranges: Range, version: int | None = None) -> DataFrame | None:
        """Return a table's rows within all `ranges`; None where there is no table.

        Reads the newest version, or the one that is asked for.
        """
        table = self._tables.open(path)
        if table is not None and version is not None and version != table.version():
            table = DeltaTable(path, version=version)
        if table is None:
            return None
        schema = from_arrow_schema(schema_of(table))
        files = _files(table, ranges)
        if not files:
            return self._spark.session.createDataFrame([], schema)
        # They are files' names, and no patterns: a folder may be called `lake [eu]`.
        named = self._spark.session.read.option("__globPaths__", "false")
        frame = named.schema(schema).parquet(*files)
        for within in ranges:
            if within.lower is not None:
                frame = frame.filter(frame[within.column] >= within.lower)
            if within.upper is not None:
                frame = frame.filter(frame[within.column] < within.upper)
        return frame

    def bytes_of(self, path: str, *ranges: Range) -> int:
        """Return the size of a table's files, of those within `ranges`; 0 without a table."""
        table = self._tables.open(path)
        if table is None:
            return 0
        return pc.sum(actions_within(table, ranges)["size_bytes"]).as_py() or 0

    def from_arrow(self, rows: pa.Table) -> DataFrame:
        """Return an Arrow table as a frame."""
        if rows.num_rows == 0:
            return self._spark.session.createDataFrame([], from_arrow_schema(rows.schema))
        return self._spark.session.createDataFrame(rows)


def _files(table: DeltaTable, ranges: tuple[Range, ...]) -> list[str]:
    root = location_of(table)
    return [f"{root}/{path}" for path in actions_within(table, ranges)["path"].to_pylist()]


def with_nulls(frame: DataFrame, wanted: StructType) -> DataFrame:
    """Return a frame with nulls in those wanted columns that it lacks."""
    for field in wanted:
        if field.name not in frame.columns:
            frame = frame.withColumn(field.name, functions.lit(None).cast(field.dataType))
    return frame
