"""What is written first: a foreachBatch that MERGEs the newest change per key into each table.

Runs as a process of its own, `python -m benchmarks.cdc.naive_merge JSON`, over the same topics as
Penstock. It prints one line of JSON per batch: rows, milliseconds, and for a part of the rows the
seconds from the commit in the source to the end of the batch's MERGE. It keeps no log, folds half
transactions and forgets what a crash interrupts: the work that a plain pipeline does, no more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window, functions

from benchmarks.cdc.rival import EVERY, Work, records, run, session, tell
from schemas.avro_vectors import read_columns
from schemas.columns import decode_rows
from schemas.registry import ConfluentRegistry
from schemas.wire import schema_id_of
from stack.jars import resolve

_ROW = "id bigint, customer_id bigint, status string, amount decimal(12,2), note string"
_OUT = f"tbl string, {_ROW}, updated_at timestamp, op string, lsn bigint, at bigint"


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
    tell(rows, began, ended, moments)


def main() -> None:
    """Run until SIGTERM."""
    work = Work.parse(sys.argv[1])
    spark = session(work, resolve("spark").spark_jars())
    decoded = (
        records(spark, work)
        .select("value")
        .where("value IS NOT NULL")
        .mapInArrow(Decode(work.registry), _OUT)
    )
    run(decoded, work, lambda frame, _: merge(spark, work, frame))


if __name__ == "__main__":
    main()
