"""A projection built from typed tables that were made for it: with one slice, and with many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from apps.pipeline.session import start_session, warm
from kernel.positions import Epoch
from projections.log.layout import Lake
from projections.log.tables import TableAt, Tables
from projections.log.typed_columns import EVENT_COLUMNS
from projections.log.writer import ArrowWriter, Guard
from projections.runner.catalog import LIVE, PROJECTION, Entry
from projections.runner.manifest import TYPED, Bound, Committed, Projected
from projections.runner.progress import Progress
from replay.book import State
from replay.build import Builder
from replay.subject import Site
from stack.jars import resolve
from stack.java import find_java

TOLD = "typed/events.flight.departed"
NAME = "delays"
SQL = """CREATE PROJECTION delays WITH (key = 'carrier, window_start') AS
SELECT carrier, window_start, COUNT(*) AS flights, SUM(delay) AS delay
FROM STREAM events.flight.departed GROUP BY carrier, TUMBLE(occurred_at, '1 hour')"""
_FILE_ROWS = 500_000
_EPOCH = Epoch(1)
_BEGIN_US = 1_356_998_400_000_000
_HOUR_US = 3_600_000_000


@contextmanager
def session(scratch: Path) -> Iterator[SparkSession]:
    """Open the pipeline's kind of Spark session."""
    made = start_session(
        resolve("spark").spark_jars(),
        scratch=scratch,
        memory="1536m",
        java_home=find_java().home,
    )
    warm(made)
    yield made
    made.stop()


def measure(
    spark: SparkSession, folder: Path, rows: int, slices: int | None
) -> Mapping[str, float]:
    """Build one generation over so many events; return seconds, rate and slices."""
    site = _site(folder / f"lake-{rows}", rows)
    builder = Builder(spark, site, lambda _: None)
    built = builder.build(NAME, slices=slices)
    assert built.state is State.BUILT
    took = {name: float(str(built.detail[name])) for name in ("rows", "seconds", "slices")}
    return {
        "s": took["seconds"],
        "events_per_s": took["rows"] / took["seconds"],
        "slices": took["slices"],
    }


def _site(folder: Path, rows: int) -> Site:
    site = Site(lake=Lake.at(folder))
    if folder.exists():
        return site
    tables = Tables()
    writer = ArrowWriter(tables)
    path, version = site.lake.path(TOLD), 0
    for first in range(0, rows, _FILE_ROWS):
        part = _events(first, min(_FILE_ROWS, rows - first), rows)
        version = writer.append(path, part, Guard(TOLD, Epoch(first + 1)))
    at = TableAt(version=version, as_of_epoch=_EPOCH)
    site.manifest.bind(Bound(epoch=_EPOCH, run_id="b", batch_id=0, start={}, end={}))
    site.manifest.commit(
        Committed(
            epoch=_EPOCH,
            run_id="b",
            batch_id=0,
            end={},
            progress=Progress().to_json(),
            heads={},
            cuts={},
            pending_from={},
            tables={},
            counts={},
            timings_ms={},
            at=datetime.now(UTC),
        )
    )
    site.manifest.project(Projected(epoch=_EPOCH, name=TYPED, tables={TOLD: at}))
    site.deployed.put([Entry(kind=PROJECTION, name=NAME, generation=1, status=LIVE, text=SQL)])
    return site


def _events(first: int, count: int, rows: int) -> pa.Table:
    chance = np.random.default_rng(first)
    positions = np.arange(first, first + count)
    moments = _BEGIN_US + (positions * (8_760 * _HOUR_US // rows))
    times = pa.array(moments, pa.timestamp("us", "UTC"))
    texts = pa.array(positions).cast(pa.string())
    known = {
        "event_id": texts,
        "stream": texts,
        "entity_id": texts,
        "type": pa.array(["departed"] * count),
        "version": pa.array(np.zeros(count, np.int64)),
        "position": pa.array(positions),
        "occurred_at": times,
        "recorded_at": times,
    }
    return pa.table(
        {
            "carrier": pa.array(chance.integers(0, 500, count)).cast(pa.string()),
            "delay": chance.integers(-10, 600, count),
            **{field[0]: known[field[0]].cast(field[1]) for field in EVENT_COLUMNS},
            "_epoch": np.full(count, int(_EPOCH)),
            "_late": np.zeros(count, bool),
            "_time": times,
            "_seq_hi": positions,
            "_seq_lo": np.zeros(count, np.int64),
            "_ingested_at": times,
        }
    )
