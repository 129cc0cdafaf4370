"""What an epoch of a history costs that this process folds, and one that Spark's executors fold.

3, 100 and 10,000 changed rows, on a history of 10,000 and of 1,000,000 versions of a captured table
with an integer key, one version a key to begin with. Each fold reads its rows from the typed table,
computes what changes and merges it: one commit. The candidate is folded by this process whatever
its size, the baseline by executors, both committed from here.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.harness import Context, Figures, whole_numbers
from benchmarks.machine import children_cpu_s
from kernel.positions import Epoch
from lake.layout import Lake
from lake.spark_session import start_session, warm
from lake.table_columns import UTC_MICROS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import HistoryTables
from stack.jars import resolve
from stack.java import find_java

NAME = "histories"
CONDITIONS = (
    "typed rows in the lake, folded into a history by guarded commits, each handed to the file "
    "system without waiting for the disk; the second of two like epochs counts"
)
STORED = (10_000, 1_000_000)
CHANGED = (3, 100, 10_000)
ALL_BYTES = 2**40
AT = datetime(2013, 1, 1, tzinfo=UTC)
ORDERS = HistoryOf(
    name="history/shop.public.orders",
    typed="typed/shop.public.orders",
    key=("id",),
    identity=("id",),
    by_row=False,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how many versions a history has."""
    parser.add_argument(
        "--histories-stored",
        type=whole_numbers,
        default=STORED,
        help="histories: versions that are stored, as 10000,1000000",
    )


def run(context: Context) -> Figures:
    """Fold in this process."""
    return _measured(context, driver_bytes=ALL_BYTES)


def BASELINE(context: Context) -> Figures:
    """Fold by Spark's executors."""
    return _measured(context, driver_bytes=0)


def _measured(context: Context, *, driver_bytes: int) -> Figures:
    spark = context.once("spark", lambda: _spark(context.folder))
    found: dict[str, float] = {}
    for stored in getattr(context.options, "histories_stored", STORED):
        lake = Lake.at(context.folder / f"lake-{uuid.uuid4().hex}")
        tables = Tables()
        writer = ArrowWriter(tables)
        histories = HistoryTables(spark, lake, tables, driver_bytes=driver_bytes)
        writer.append(lake.path(ORDERS.name), _versions(stored), Guard(ORDERS.name, Epoch(1)))
        epoch = 1
        for changed in CHANGED:
            for _ in range(2):
                epoch += 1
                rows = _changes(stored, changed, epoch)
                writer.append(lake.path(ORDERS.typed), rows, Guard(ORDERS.typed, Epoch(epoch)))
                with _spent() as spent:
                    at = histories.fold(ORDERS, Epoch(epoch))
                assert at is not None
            # Of two like epochs the second: Spark has compiled its plan then.
            who = "driver" if driver_bytes else "executors"
            told = ", ".join(f"{name} {value:,.3f}" for name, value in spent.items())
            load = os.getloadavg()[0]
            context.progress(f"    {changed} of {stored} by {who}, load {load:.1f}: {told}")
            found |= {f"{stored}_stored_{changed}_changed_{n}": v for n, v in spent.items()}
        table = tables.open(lake.path(ORDERS.name))
        assert table is not None
        assert table.count() == stored + 2 * sum(CHANGED)
        shutil.rmtree(lake.root)
    return found


def _versions(count: int) -> pa.Table:
    """Return one open version for each of so many keys."""
    ids = np.arange(count, dtype=np.int64)
    return _rows(ids, AT, 0).append_column("_epoch", pa.repeat(pa.scalar(1, pa.int64()), count))


def _rows(ids: np.ndarray[tuple[int], np.dtype[np.int64]], at: datetime, place: int) -> pa.Table:
    count = len(ids)
    constants = {
        "valid_from": pa.scalar(at, UTC_MICROS),
        "valid_to": pa.scalar(None, UTC_MICROS),
        "_deleted": pa.scalar(False, pa.bool_()),
        "_seq_hi": pa.scalar(place, pa.int64()),
        "_seq_lo": pa.scalar(0, pa.int64()),
        **dict.fromkeys(("_transaction", "_previous_key", "_next_key"), pa.scalar("7")),
    }
    own = _columns(ids, place)
    return pa.table(own | {name: pa.repeat(value, count) for name, value in constants.items()})


def _columns(ids: np.ndarray[tuple[int], np.dtype[np.int64]], place: int) -> dict[str, pa.Array]:
    return {
        "id": pa.array(ids),
        "customer": pa.array([f"customer {number % 9973}" for number in ids.tolist()]),
        "amount": pa.array(ids * 0.25 + place),
        "state": pa.array(["open", "paid", "sent"])
        .dictionary_encode()
        .dictionary.take(pa.array((ids + place) % 3)),
    }


def _changes(stored: int, count: int, epoch: int) -> pa.Table:
    """Return updates of so many keys, from all over the table."""
    ids = np.sort(
        np.random.default_rng(epoch).choice(stored, size=min(count, stored), replace=False)
    )
    at = AT.replace(hour=epoch)
    constants = {
        "committed_at": pa.scalar(at, UTC_MICROS),
        "_operation": pa.scalar("u"),
        "_late": pa.scalar(False),
        "_time": pa.scalar(at, UTC_MICROS),
        "_seq_hi": pa.scalar(epoch, pa.int64()),
        "_epoch": pa.scalar(epoch, pa.int64()),
        "_ingested_at": pa.scalar(at, UTC_MICROS),
        "_transaction": pa.scalar(str(epoch)),
    }
    rows = {name: pa.repeat(value, len(ids)) for name, value in constants.items()}
    places = {"_seq_lo": pa.array(np.arange(1, len(ids) + 1)), "_lsn": pa.array(ids + 1)}
    return pa.table(_columns(ids, epoch) | rows | places)


@contextmanager
def _spark(folder: Path) -> Iterator[SparkSession]:
    spark = start_session(
        resolve("spark").spark_jars(),
        scratch=folder / "spark",
        memory="2g",
        java_home=find_java().home,
    )
    try:
        warm(spark)
        yield spark
    finally:
        spark.stop()


@contextmanager
def _spent() -> Iterator[dict[str, float]]:
    """Measure seconds of processors, of this process and of the executors that it started."""
    found: dict[str, float] = {}
    before, others, began = resource.getrusage(resource.RUSAGE_SELF), children_cpu_s(), time.time()
    yield found
    after = resource.getrusage(resource.RUSAGE_SELF)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found["cpu_s"] = own + children_cpu_s() - others
    found["s"] = time.time() - began
