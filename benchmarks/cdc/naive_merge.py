"""What is written first: a foreachBatch that MERGEs the newest change per key into each table.

Runs as a process of its own, `python -m benchmarks.cdc.naive_merge JSON`, over the same topics as
Penstock. It prints one line of JSON per batch: rows, milliseconds, and for a part of the rows the
seconds from the commit in the source to the end of the batch's MERGE. It keeps no log, folds half
transactions and forgets what a crash interrupts: the work that a plain pipeline does, no more.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window, functions

from apps.pipeline.session import start_session, warm
from schemas.avro_vectors import read_columns
from schemas.columns import decode_rows
from schemas.registry import ConfluentRegistry
from schemas.wire import schema_id_of
from stack.jars import resolve
from stack.java import find_java

EVERY = 20
_ROW = "id bigint, customer_id bigint, status string, amount decimal(12,2), note string"
_OUT = f"tbl string, {_ROW}, updated_at timestamp, op string, lsn bigint, at bigint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Where to read and write; `tables` as `schema.table`."""

    bootstrap: str
    registry: str
    source: str
    tables: tuple[str, ...]
    folder: str
    scratch: str

    @staticmethod
    def parse(text: str) -> Work:
        """Read what `render` gave."""
        found = json.loads(text)
        return Work(**{**found, "tables": tuple(found["tables"])})

    def render(self) -> str:
        """Return the command line's argument."""
        return json.dumps(asdict(self))

    def path(self, table: str) -> str:
        """Return where a table lies."""
        return f"{self.folder}/{table}"


@dataclass(frozen=True, slots=True)
class Decode:
    """Envelopes to rows, by the same decoder as Penstock's own."""

    registry: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Decode the column `value`."""
        schemas = ConfluentRegistry(self.registry)
        for batch in batches:
            values = batch.column("value").to_pylist()
            for schema_id in sorted({schema_id_of(value) for value in values}):
                mine = [value for value in values if schema_id_of(value) == schema_id]
                yield _decoded(mine, schemas.schema(schema_id))


def _decoded(values: list[bytes], schema: str) -> pa.RecordBatch:
    found = read_columns(
        values, schema, [("source", "table"), ("op",), ("source", "lsn"), ("source", "ts_us")]
    )
    assert found is not None, "the benchmark's tables have plain columns"
    rows = decode_rows(values, schema, "after")
    columns = [found["source", "table"], *(rows[n].combine_chunks() for n in rows.column_names[:6])]
    columns += [found["op",], found["source", "lsn"], found["source", "ts_us"]]
    names = ["tbl", *rows.column_names[:6], "op", "lsn", "at"]
    return pa.RecordBatch.from_arrays(columns, names=names)


def merge(spark: SparkSession, work: Work, frame: DataFrame) -> None:
    """Fold one batch into the tables and tell how it went."""
    began = time.time()
    frame = frame.persist()
    rows = frame.count()
    newest = Window.partitionBy("id").orderBy(functions.col("lsn").desc())
    for table in work.tables:
        own = frame.filter(functions.col("tbl") == table.partition(".")[2])
        last = own.withColumn("n", functions.row_number().over(newest)).filter("n = 1")
        target = DeltaTable.forPath(spark, work.path(table)).alias("t")
        columns = {c: f"s.{c}" for c in ("id", "customer_id", "status", "amount", "note")}
        columns["updated_at"] = "s.updated_at"
        (
            target.merge(last.alias("s"), "t.id = s.id")
            .whenMatchedDelete("s.op = 'd'")
            .whenMatchedUpdate(set=columns)
            .whenNotMatchedInsert(condition="s.op <> 'd'", values=columns)
            .execute()
        )
    ended = time.time()
    moments = [row["at"] for row in frame.select("at").collect()[::EVERY]]
    frame.unpersist()
    told = {"rows": rows, "ms": (ended - began) * 1000, "ended": ended, "at": moments}
    print(json.dumps(told), flush=True)


def main() -> None:
    """Run until SIGTERM."""
    work = Work.parse(sys.argv[1])
    spark = start_session(
        resolve("spark").spark_jars(),
        scratch=Path(work.scratch),
        memory="1536m",
        java_home=find_java().home,
    )
    warm(spark)
    topics = ",".join(f"{work.source}.{table}" for table in work.tables)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", work.bootstrap)
        .option("subscribe", topics)
        .option("startingOffsets", "latest")
        .option("kafka.isolation.level", "read_committed")
        .load()
        .select("value")
        .where("value IS NOT NULL")
        .mapInArrow(Decode(work.registry), _OUT)
    )
    query = (
        records.writeStream.foreachBatch(lambda frame, _: merge(spark, work, frame))
        .option("checkpointLocation", f"{work.scratch}/checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    signal.signal(signal.SIGTERM, lambda *_: query.stop())
    print(json.dumps({"ready": True}), flush=True)
    while query.isActive:
        time.sleep(0.1)
    if query.exception() is not None:
        raise SystemExit(f"the stream ended: {query.exception()}")
    spark.stop()


if __name__ == "__main__":
    main()
