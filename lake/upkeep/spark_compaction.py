"""Compaction of large tables by Spark's executors: each writes some of the new files.

The commit is Delta's own for this: it changes no rows, and fails when another writer removed one of
the files meanwhile. A crash leaves files that nobody names.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta.tables import DeltaTable as SparkDeltaTable
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from kernel.errors import LeaseLost, Unavailable
from lake.datasets import location_of
from lake.sessions import session_beside
from lake.spark_writer import CONFLICTS
from lake.upkeep.compaction import GROUP_ROWS
from schemas.identifiers import spark_name

_OPTIMIZE = "spark.databricks.delta.optimize"


class SparkCompaction:
    """Puts files together on executors; see `PutTogether`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def __call__(self, table: DeltaTable, partitions: Sequence[str | None], size: int) -> None:
        """See `PutTogether`. Raises `LeaseLost` where another writer was first."""
        # Sizes of files are taken from the session: they must not leak into other writes.
        session = session_beside(self._spark)
        settings = {
            f"{_OPTIMIZE}.minFileSize": size,
            f"{_OPTIMIZE}.maxFileSize": size,
            "parquet.block.row.count.limit": GROUP_ROWS,
        }
        for name, value in settings.items():
            session.conf.set(name, str(value))
        builder = SparkDeltaTable.forPath(session, location_of(table)).optimize()
        if (condition := _among(table, partitions)) is not None:
            builder = builder.where(condition)
        try:
            builder.executeCompaction()
        except (PySparkException, Py4JJavaError) as error:
            text = str(error)
            if any(name in text for name in CONFLICTS):
                raise LeaseLost(f"{table.table_uri} was written while it was compacted") from error
            raise Unavailable(f"compacting {table.table_uri} failed: {text[:500]}") from error


def _among(table: DeltaTable, partitions: Sequence[str | None]) -> str | None:
    """Return a condition for partitions by their values; None for the whole table."""
    names = [name for name in partitions if name is not None]
    if not names:
        return None
    (column,) = table.metadata().partition_columns
    values = ", ".join(_literal(name) for name in names)
    return f"{spark_name(column)} IN ({values})"


def _literal(text: str) -> str:
    """Write a text for Spark SQL, in which a backslash begins an escape."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
