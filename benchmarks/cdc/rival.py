"""What every pipeline beside Penstock's does as a process: a session, a stream of records, an end.

It prints `{"ready": true}`, then one line of JSON per batch, until SIGTERM.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from lake.spark_session import start_session, warm
from stack.java import find_java

EVERY = 20
"""Of so many rows of a batch one tells its commit's time."""


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


def session(work: Work, jars: Sequence[Path]) -> SparkSession:
    """Start Spark, small and warm, as Penstock's own."""
    spark = start_session(
        jars, scratch=Path(work.scratch), memory="1536m", java_home=find_java().home
    )
    warm(spark)
    return spark


def records(spark: SparkSession, work: Work) -> DataFrame:
    """Read the tables' topics as a stream, from now on."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", work.bootstrap)
        .option("subscribe", ",".join(f"{work.source}.{table}" for table in work.tables))
        .option("startingOffsets", "latest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )


def tell(rows: int, began: float, ended: float, moments: Sequence[int]) -> None:
    """Print how a batch went; `moments` are commits' times in microseconds."""
    told = {"rows": rows, "ms": (ended - began) * 1000, "ended": ended, "at": list(moments)}
    print(json.dumps(told), flush=True)


def run(frame: DataFrame, work: Work, batch: Callable[[DataFrame, int], None]) -> None:
    """Hand over batch after batch until SIGTERM; an error of the stream ends the process."""
    query = (
        frame.writeStream.foreachBatch(batch)
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
    frame.sparkSession.stop()
