"""kafka2delta's own function for a batch, in a query that tells how each batch went.

Runs as a process, `python -m benchmarks.cdc.kafka2delta_merge JSON`; see `naive_merge` for what it
prints. The moments of commits are read from a part of the rows before the batch is measured on.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from benchmarks.cdc.rival import EVERY, Work, records, run, session, tell
from schemas.columns import decode_value
from schemas.registry import API_PATH, ConfluentRegistry
from stack.jars import resolve
from stack.lock import Artifact, read_lock

AVRO = Artifact(
    group="peers",
    organisation="org.apache.spark",
    name="spark-avro_2.13",
    revision="4.1.1",
    classifier="",
    extension="jar",
    size_bytes=92354,
    sha256="6a19d90bc3b6e88d8db0fa36a19273aa10fea2dbd7a62bb60e4cedd73051b32d",
)


def query_of(spark: SparkSession, work: Work) -> DataFrame:
    """Return the stream that kafka2delta makes of topics, with the same columns and functions."""
    functions = importlib.import_module("kafka2delta.udf")
    return records(spark, work).select(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        functions.get_schema_id("key").alias("key_schema_id"),
        functions.get_schema_id("value").alias("value_schema_id"),
        functions.get_confluent_avro_value("value").alias("value_avro"),
    )


def telling(
    merge: Callable[[DataFrame, int], None], registry: ConfluentRegistry
) -> Callable[[DataFrame, int], None]:
    """Return the function of a batch: kafka2delta's, and a line about it."""

    def told(frame: DataFrame, batch: int) -> None:
        began = time.time()
        # Kept as its own function keeps it: what it needs anyway.
        rows = frame.cache().select("value_schema_id", "value_avro").collect()
        merge(frame, batch)
        ended = time.time()
        framed = (
            b"\0" + row["value_schema_id"].to_bytes(4, "big") + row["value_avro"]
            for row in rows[::EVERY]
        )
        at = [
            decode_value(value, registry.schema(int.from_bytes(value[1:5], "big")))[
                "__committed_us"
            ]
            for value in framed
        ]
        tell(len(rows), began, ended, at)

    return told


def main() -> None:
    """Run until SIGTERM."""
    work = Work.parse(sys.argv[1])
    jars = resolve("spark", "peers", lock=(*read_lock(), AVRO))
    spark = session(work, [*jars.spark_jars(), *jars.paths["peers"]])
    config = importlib.import_module("kafka2delta.config").DeltaTableConfig
    stream = importlib.import_module("kafka2delta.stream.stream")
    configs = {}
    for table in work.tables:
        name = table.replace(".", "_")
        spark.sql(f"CREATE TABLE default.{name} USING delta LOCATION '{work.path(table)}'")
        topic = f"{work.source}.{table}"
        configs[topic] = config(schema="default", table_name=name, path=work.path(table))
    merge = stream.merge_micro_batch(work.registry.rstrip("/") + API_PATH, configs)
    run(query_of(spark, work), work, telling(merge, ConfluentRegistry(work.registry)))


if __name__ == "__main__":
    main()
