"""What an epoch costs that the driver decodes, and one that Spark's executors decode and write.

Events of one store, 10,000 to 1,000,000 in an epoch, from files in place of Kafka: what is read is
the same for both. Then their typed table (`typed`), and as many changed rows of one table of that
many rows (`fold`), both read from the log. The candidate goes by executors, the baseline by the
driver, which has no form for more than a million: it would hold them all.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks.bounds.source import FIRST_ID, SOURCE, columns_of, logged, registry, table_name
from benchmarks.harness import Context, Figures, whole_numbers
from benchmarks.machine import children_cpu_s
from eventstore.decode import EventDecoder
from kernel.positions import Epoch, Offsets
from lake.datasets import dataset_of
from lake.executor_tasks import Executors, SparkTasks
from lake.layout import Lake, changes_log, current_name, events_log
from lake.spark_session import start_session, warm
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound
from pipeline.current.bucketed_merge import large_merge
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.tables import CurrentTables
from pipeline.decode.records import Decoder
from pipeline.log.large_folds import LARGE_ROWS, split
from pipeline.log.log_task import Facts
from pipeline.log.staged_rows import Staged
from pipeline.read.driver_reads import RECORDS
from pipeline.read.kafka_records import (
    decode_records,
    session_for_records,
    staged_by_executors,
)
from pipeline.typed.columns import Visible
from pipeline.typed.tables import TypedTables
from schemas.registry import MemoryRegistry
from stack.jars import resolve
from stack.java import find_java

NAME = "executors"
CONDITIONS = (
    "one epoch after another, each bound, decoded, sorted out, committed to the log and to the "
    "manifest; exactly once; then typed events and a fold of changes, each in one commit; every "
    "commit is handed to the file system without waiting for the disk"
)
SIZES = (10_000, 100_000, 1_000_000)
DRIVER_MOST = 1_000_000
"""Rows of an epoch that the driver takes in at most: its log holds 1.2 GB for them."""
STORE, TOPIC = "store", "events.flight"
LSN = 1_000_000
PARTITIONS, FILE_ROWS = 4, 50_000
AT = datetime(2013, 1, 1, tzinfo=UTC)
SCHEMA = (
    '{"type": "record", "name": "departed", "fields": [{"name": "words", '
    '"type": {"type": "fixed", "name": "words", "size": 96}}]}'
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how many rows an epoch has."""
    parser.add_argument(
        "--executors-rows",
        type=whole_numbers,
        default=SIZES,
        help="executors: rows of each epoch, as 10000,100000",
    )


def run(context: Context) -> Figures:
    """Make an epoch of each size on executors."""
    return _measured(context, on_executors=True)


def BASELINE(context: Context) -> Figures:
    """Make an epoch of each size in the driver."""
    return _measured(context, on_executors=False)


class Words:
    """Knows the one schema that the events of this benchmark have."""

    def schema(self, schema_id: int) -> str:
        """Return its text."""
        return SCHEMA


@dataclass(frozen=True, slots=True)
class Events:
    """Decodes every topic as the event store's. Picklable."""

    def decoder(self, topic: str) -> Decoder | None:
        """Return the decoder of events."""
        return EventDecoder(Words())


class Nobody:
    """Stands for the broker: nothing is asked of it here."""

    def publish(self, offsets: Offsets) -> None:
        """Nobody looks at the lag."""

    def ends(self, source: str) -> Offsets:
        """No transaction was begun twice."""
        raise AssertionError(source)


def _measured(context: Context, *, on_executors: bool) -> Figures:
    spark = context.once("spark", lambda: _spark(context.folder))
    found: dict[str, float] = {}
    executors = Executors()
    if on_executors:
        executors = Executors(tasks=SparkTasks(spark), rows_at_once=lambda most: 0)
    for size in _sizes(context):
        if size > DRIVER_MOST and not on_executors:
            continue
        raw = _records(context.folder / f"records-{size}", size)
        lake = Lake.at(context.folder / f"lake-{uuid.uuid4().hex}")
        ingest = _ingest(lake)
        bound = Bound(
            epoch=ingest.next_epoch,
            run_id="b",
            batch_id=0,
            start={TOPIC: {str(p): 0 for p in range(PARTITIONS)}},
            end={TOPIC: {str(p): size // PARTITIONS for p in range(PARTITIONS)}},
        )
        with _spent(lake) as spent:
            if on_executors:
                ingest.run_epoch(bound, None, stage=partial(_staged, spark, raw))
            else:
                ingest.run_epoch(bound, _decode(spark, raw))
        _check(lake, events_log(STORE), size)
        found |= _figures(context, size, "log", spent, on_executors)
        for name, step in {"typed": _typed, "fold": _folded}.items():
            spent = step(spark, lake, size, executors)
            found |= _figures(context, size, name, spent, on_executors)
        shutil.rmtree(lake.root)
    return found


def _sizes(context: Context) -> Sequence[int]:
    if getattr(context.options, "quick", False):
        return SIZES[:1]
    return getattr(context.options, "executors_rows", SIZES)


def _figures(
    context: Context, size: int, step: str, spent: Mapping[str, float], on_executors: bool
) -> dict[str, float]:
    """Name the figures of one step, and tell them at once: a run of large sizes takes minutes."""
    found = {**spent, "driver_cpu_per_row_us": spent["driver_cpu_s"] / size * 1e6}
    who = "executors" if on_executors else "driver"
    told = ", ".join(f"{name} {value:,.2f}" for name, value in found.items())
    context.progress(f"    {size} rows, {step} by {who}, load {os.getloadavg()[0]:.1f}: {told}")
    return {f"{size}_rows_{step}_{name}": value for name, value in found.items()}


def _typed(spark: SparkSession, lake: Lake, size: int, executors: Executors) -> dict[str, float]:
    """Bring the typed table of the events to their epoch."""
    schemas = MemoryRegistry()
    numbers = [{"name": f"n{each}", "type": "double"} for each in range(12)]
    text = json.dumps({"type": "record", "name": "Departed", "fields": numbers})
    assert schemas.register("departed", text) == 1
    typed = TypedTables(lake, Tables(), schemas, executors)
    with _spent(lake) as spent:
        done = typed.add_events(STORE, Visible(0, [(Epoch(1), size)]), Epoch(1))
    assert not done.failed
    _check(lake, "typed/events.flight.departed", size)
    return spent


def _folded(spark: SparkSession, lake: Lake, size: int, executors: Executors) -> dict[str, float]:
    """Fold updates of all rows of a table, each in a transaction of many rows."""
    tables, table, log = Tables(), table_name(0), lake.path(changes_log(SOURCE))
    ids = FIRST_ID + np.arange(size)
    base = pa.table({"id": ids, "size": np.zeros(size, np.int64)})
    name = current_name(SOURCE, table)
    ArrowWriter(tables).append(lake.path(name), base, Guard(name, Epoch(1)))
    for number, first in enumerate(range(0, size, FILE_ROWS), start=1):
        own = ids[first : first + FILE_ROWS]
        columns = columns_of(
            table, own, own, transaction="t", lsn=LSN + 10 * first, order=LSN, first=first
        )
        ArrowWriter(tables).append(log, logged(columns, 2), Guard("log", Epoch(number)))
    handle = tables.open(log)
    assert handle is not None
    where = pc.field("table") == table
    current = CurrentTables(
        lake,
        tables,
        registry(),
        large=large_merge(spark, tables, executors.tasks),
        policy=FoldPolicy(freshness_s=1e9, longest_s=1e9, share=1e9),
        executors=executors,
    )
    with _spent(lake) as spent:
        large = split(handle, where, since=0, most=executors.rows_at_once(LARGE_ROWS))[1]
        if table in large:
            current.fold_large(SOURCE, table, large[table], Epoch(2))
        else:
            current.fold(SOURCE, table, dataset_of(handle).to_table(filter=where), Epoch(2))
    current.settle(SOURCE, table)
    current.close()
    _check(lake, name, size)
    return spent


def _check(lake: Lake, name: str, size: int) -> None:
    table = Tables().open(lake.path(name))
    assert table is not None
    assert table.count() == size


def _staged(spark: SparkSession, raw: Path, facts: Facts) -> Staged:
    return staged_by_executors(session_for_records(spark).read.parquet(str(raw)), Events(), facts)


def _decode(spark: SparkSession, raw: Path) -> Callable[[], pa.Table]:
    frame = session_for_records(spark).read.parquet(str(raw))
    return lambda: decode_records(frame, Events(), here=False, most_bytes=2**40)


def _ingest(lake: Lake) -> Ingest:
    tables = Tables(owned=lake.written_by_ingest)
    return Ingest(
        lake,
        tables,
        Manifest(lake, tables),
        MemoryRegistry(),
        lateness=lambda _: timedelta(minutes=10),
        broker=Nobody(),
    )


def _records(folder: Path, size: int) -> Path:
    """Write raw records as Kafka's partitions hold them, unless they are there."""
    if folder.exists():
        return folder
    folder.mkdir()
    each = size // PARTITIONS
    for partition in range(PARTITIONS):
        for first in range(0, each, FILE_ROWS):
            offsets = range(first, min(each, first + FILE_ROWS))
            rows = [_record(partition, offset) for offset in offsets]
            table = pa.Table.from_pylist(rows, schema=RECORDS)
            pq.write_table(table, folder / f"{partition}-{first:09d}.parquet")
    return folder


def _record(partition: int, offset: int) -> dict[str, object]:
    position = offset * PARTITIONS + partition + 1
    stream = f"flight-{position % 997}"
    told = {
        "id": str(uuid.UUID(int=position)),
        "store_id": STORE,
        "type": "departed",
        "stream": stream,
        "category": "flight",
        "version": str(position),
        "position": str(position),
        "schema_id": "1",
        "data_format": "0",
        "metadata": "{}",
        "tags": "[]",
        "occurred_at": AT.isoformat(),
        "recorded_at": AT.isoformat(),
    }
    return {
        "topic": TOPIC,
        "partition": partition,
        "offset": offset,
        "timestamp": AT,
        "key": stream.encode(),
        "value": b"\0\0\0\0\1" + position.to_bytes(8, "big") * 12,
        "headers": [{"key": name, "value": text.encode()} for name, text in told.items()],
    }


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    spark = start_session(
        resolve("spark").spark_jars(),
        scratch=folder / "spark",
        memory="2g",
        java_home=find_java().home,
        further={"spark.driver.maxResultSize": "1500m"},
    )
    try:
        warm(spark)
        yield spark
    finally:
        spark.stop()


@contextmanager
def _spent(lake: Lake) -> Iterator[dict[str, float]]:
    """Measure this process, which is the driver, and all that it started.

    `peak_bytes` is by how much this process's memory rose at most; `written_bytes` and `commits`
    are what the lake has more.
    """
    own, found = psutil.Process(), {}
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before, rss = resource.getrusage(resource.RUSAGE_SELF), own.memory_info().rss
    commits, size = _in(lake)
    others, began = children_cpu_s(), datetime.now(UTC)
    yield found
    after = resource.getrusage(resource.RUSAGE_SELF)
    driver = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found["epoch_s"] = (datetime.now(UTC) - began).total_seconds()
    found["driver_cpu_s"] = driver
    found["all_cpu_s"] = driver + children_cpu_s() - others
    found["peak_bytes"] = float(max(0, _most_resident() - rss))
    commits_now, size_now = _in(lake)
    found["commits"], found["written_bytes"] = commits_now - commits, size_now - size


def _in(lake: Lake) -> tuple[float, float]:
    """Return how many commits the tables of a lake have, and the size of all files but these."""
    found = [path for path in Path(lake.root).rglob("*") if path.is_file()]
    commits = [path for path in found if path.parent.name == "_delta_log"]
    data = sum(path.stat().st_size for path in found if path.suffix == ".parquet")
    return float(sum(path.suffix == ".json" for path in commits)), float(data)


def _most_resident() -> int:
    """Return the most memory that this process had since it was last reset."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel tells no VmHWM")
