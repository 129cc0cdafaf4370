"""The Spark session: small and warm on one machine, or on a cluster with Penstock shipped to it.

Settings `spark.*` of the workspace go to Spark as they are, over Penstock's own. Those that results
depend on are not to be set.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kernel.errors import Misconfigured
from lake.collecting import FEW_ROWS, collected
from lake.sessions import ADAPTIVE, FEW, SHUFFLES, fit_to_cores
from lake.shipment import is_elsewhere, packed, settings_of

FIXED: Mapping[str, str] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.caseSensitive": "false",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.python.daemon.module": "apps.pipeline.worker_daemon",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What results depend on: refused as a setting."""
_FIXED_BELOW = ("spark.sql.ansi.", "spark.sql.legacy.")
"""Below these, all that is not in `FIXED` changes what SQL means, and is refused as well."""

USUAL: Mapping[str, str] = {
    "spark.app.name": "penstock",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.maxResultSize": "512m",
    "spark.scheduler.mode": "FAIR",
    # What it infers of a filter over many columns, as a history has one, grows by doubling.
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # A record may be a key with all of its rows, as for a pattern.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "4096",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing."
        "FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "5",
    # A partition of a topic has a consumer, which is made anew in every epoch when it does not fit
    # into the cache. The default is 64.
    "spark.kafka.consumer.cache.capacity": "2048",
    # Half of the default: a paused stream is noticed sooner, an idle one costs little.
    "spark.sql.streaming.pollingDelay": "50ms",
}
"""What a setting of the same name replaces."""

_OF_ERRORS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""What PySpark calls the loggers of errors that it is about to raise, stack of the JVM and all."""
_JOINED: Mapping[str, str] = {
    "spark.jars": ",",
    "spark.archives": ",",
    "spark.executorEnv.PYTHONPATH": ":",
    "spark.driver.extraJavaOptions": " ",
}
"""Lists, by what is between their entries: ours stand first, then those of the settings."""
_NAMED_OTHERWISE: Mapping[str, str] = {"spark.driver.memory": "pipeline.driver_memory"}


def start_session(
    jars: Sequence[Path],
    *,
    scratch: Path,
    memory: str,
    java_home: Path,
    master: str = "local[2]",
    further: Mapping[str, str] | None = None,
    asked: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start Spark, or return the session that runs in this process.

    `jars` are Spark's Kafka source and Delta, `further` settings those of the lake's place, `asked`
    those of the user, which win. `scratch` takes what Spark writes on the side. Raises
    `Misconfigured` for a setting that results depend on.
    """
    asked = asked or {}
    os.environ["JAVA_HOME"] = str(java_home)
    os.environ["PYSPARK_PYTHON"] = asked.get("spark.pyspark.python", sys.executable)
    os.environ["SPARK_LOCAL_DIRS"] = str(scratch)
    scratch.mkdir(parents=True, exist_ok=True)
    ours = {
        **FIXED,
        **USUAL,
        **dict(_addresses(master)),
        **(further or {}),
        SHUFFLES: str(FEW),
        ADAPTIVE: "false",
        "spark.jars": ",".join(map(str, jars)),
        "spark.driver.memory": memory,
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.extraJavaOptions": (
            f"-XX:+UseSerialGC -Dderby.system.home='{scratch}' -Djava.io.tmpdir='{scratch}'"
        ),
    }
    if is_elsewhere(master):
        ours |= settings_of(packed(scratch / "shipped"))
    silence_errors()
    builder = SparkSession.builder.master(master)
    for name, value in with_asked(ours, asked).items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    fit_to_cores(session, asked)
    return session


def silence_errors() -> None:
    """Have PySpark raise errors of a query without writing each to the standard error, too.

    A row that cannot be computed is looked for by halves: its 30 kB of stack would come each time.
    """
    for name in _OF_ERRORS:
        # Theirs, not one of `logging`: it takes more arguments.
        PySparkLogger.getLogger(name).disabled = True


def with_asked(ours: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return Penstock's settings of Spark with those of the user over them.

    Raises `Misconfigured` for one that results depend on, or that has another name here.
    """
    found = dict(ours)
    for name, value in asked.items():
        if name in _NAMED_OTHERWISE:
            raise Misconfigured(
                f"{name} is set by {_NAMED_OTHERWISE[name]}",
                remedy=f"Set {_NAMED_OTHERWISE[name]} = {value!r} in its place.",
            )
        if name in FIXED and value != FIXED[name]:
            raise Misconfigured(
                f"{name} is {FIXED[name]!r}: what tables hold depends on it",
                remedy=f"Leave {name} out of the settings.",
            )
        if name not in FIXED and name.startswith(_FIXED_BELOW):
            raise Misconfigured(
                f"{name} changes what SQL means: what tables hold depends on it",
                remedy=f"Leave {name} out of the settings.",
            )
        between = _JOINED.get(name)
        has = found.get(name)
        found[name] = f"{has}{between}{value}" if between is not None and has else value
    return found


def _addresses(master: str) -> tuple[tuple[str, str], ...]:
    """Keep Spark on loopback, unless executors elsewhere must reach the driver."""
    bind, host = ("127.0.0.1",) * 2
    if not master.startswith("local"):
        bind, host = "0.0.0.0", socket.gethostname()
    return ("spark.driver.bindAddress", bind), ("spark.driver.host", host)


def warm(session: SparkSession) -> None:
    """Run the first job and start a Python worker, so that the first epoch does not pay for it."""
    counted = session.range(0, 10, 1, 2).mapInArrow(lambda batches: batches, "id long")
    collected(counted, FEW_ROWS)
    session.createDataFrame(pa.table({"k": [1]})).createOrReplaceTempView("warm")
    collected(session.sql("SELECT k, count(*) FROM warm GROUP BY k"), FEW_ROWS)
    session.catalog.dropTempView("warm")
