"""One build of a projection from a typed table, in a process of its own, and what it told."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.loaded_epoch import commit_load
from benchmarks.replay.usage import usage
from kernel.positions import Epoch
from lake.layout import Lake
from lake.spark_session import start_session
from lake.table_columns import UTC_MICROS
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import HistoryTables
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run.catalog import CAPTURE, LIVE, PROJECTION, SOURCE, DeployedCatalog, Entry
from replay.build import Builder
from replay.progress import BuildProgress
from replay.subject import Site
from stack.jars import resolve
from stack.java import find_java

QUERIES: Mapping[str, str] = {
    "newest": """
CREATE PROJECTION newest WITH (key = 'account') AS
SELECT account, amount, occurred_at FROM STREAM events.account.paid;
""",
    "sums": """
CREATE PROJECTION sums WITH (key = 'account, window_start') AS
SELECT account, window_start, COUNT(*) AS n, SUM(amount) AS amount
FROM STREAM events.account.paid GROUP BY account, TUMBLE(occurred_at, '1 day');
""",
    "rated": """
CREATE PROJECTION rated WITH (key = 'event_id') AS
SELECT p.event_id, p.account, p.amount, r.rate FROM STREAM events.account.paid p
LEFT JOIN rates FOR SYSTEM_TIME AS OF p.occurred_at r ON r.account = p.account;
""",
    "visits": """
CREATE PROJECTION visits WITH (key = 'account, window_start') AS
SELECT account, window_start, window_end, COUNT(*) AS n, SUM(amount) AS amount
FROM STREAM events.account.paid GROUP BY account, SESSION(occurred_at, '2 days');
""",
    "rises": """
CREATE PROJECTION rises WITH (key = 'account, began_at') AS
SELECT account, began_at, n, amount FROM STREAM events.account.paid MATCH_RECOGNIZE (
  PARTITION BY account ORDER BY occurred_at
  MEASURES FIRST(a.occurred_at) AS began_at, COUNT(*) AS n, b.amount AS amount
  PATTERN (a b+) WITHIN INTERVAL 7 DAYS
  DEFINE b AS b.amount > PREV(b.amount)) found;
""",
}
SOURCES = """
CREATE SOURCE rates ON shop.public.rates
WITH (key = 'account', event_time = 'at', lateness = '365 days');
"""
RATES = HistoryOf(
    name="history/rates",
    typed="typed/shop.public.rates",
    key=("account",),
    identity=("account", "at"),
    by_row=True,
)
RATES_PER_ACCOUNT = 3
TYPED = "typed/events.account.paid"
_COMMAND = (sys.executable, "-m", "benchmarks.replay.building")
_FILE_ROWS = 500_000
_FIRST_TENTH = 0.1


def measure(folder: Path, rows: int, query: str) -> Mapping[str, float]:
    """Make the lake that is not there yet, build in a process, return what that took."""
    lake = filled(folder, rows)
    told = subprocess.run(
        [*_COMMAND, str(lake), query, str(folder / "spark")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    found: dict[str, float] = json.loads(told.splitlines()[-1])
    return found


def filled(folder: Path, rows: int) -> Path:
    """Return the lake of so many rows, made where it is not there yet."""
    lake = folder / f"lake-{rows}"
    if not lake.exists():
        _fill(Lake.at(lake), rows)
        command = [*_COMMAND, str(lake), str(folder / "spark")]
        subprocess.run(command, check=True, capture_output=True)
    return lake


def _fill(lake: Lake, rows: int) -> None:
    tables = Tables()
    writer, manifest = ArrowWriter(tables), Manifest(lake, tables)
    version = 0
    for part, first in enumerate(range(0, rows, _FILE_ROWS), start=1):
        facts = _facts(np.arange(first, min(first + _FILE_ROWS, rows)), rows)
        version = writer.append(lake.path(TYPED), facts, Guard("load", Epoch(part)))
    epoch, at = Epoch(1), TableAt(version=version, as_of_epoch=1)
    commit_load(manifest, epoch, rows)
    rates = writer.append(lake.path(RATES.typed), _rates(rows), Guard(RATES.typed, epoch))
    keys = json.dumps({"public.rates": RATES.identity})
    typed = {TYPED: at, RATES.typed: TableAt(version=rates, as_of_epoch=1)}
    manifest.project(Projected(epoch=epoch, name="typed", tables=typed))
    DeployedCatalog(lake, tables).put(
        [
            Entry(kind=CAPTURE, name="shop", generation=1, status=LIVE, text=keys),
            Entry(kind=SOURCE, name="rates", generation=1, status=LIVE, text=SOURCES),
            *(
                Entry(kind=PROJECTION, name=name, generation=1, status=LIVE, text=text)
                for name, text in QUERIES.items()
            ),
        ]
    )


def _facts(numbers: np.ndarray, rows: int) -> pa.Table:
    """Payments of accounts that take turns, ten to twenty of each, over thirty days."""
    chance = np.random.default_rng(int(numbers[0]))
    accounts = chance.integers(0, max(1, rows // 15), numbers.size)
    times = pa.array(numbers * (30 * 86_400_000_000 // rows), pa.int64()).cast(UTC_MICROS)
    texts = pa.array(numbers).cast(pa.string())
    columns = {
        "account": pa.array(accounts),
        "amount": pa.array(chance.integers(1, 10_000, numbers.size)),
        "event_id": texts,
        "stream": texts,
        "entity_id": texts,
        "type": pa.array(["paid"] * numbers.size),
        "version": pa.array(numbers),
        "position": pa.array(numbers + 1),
        "occurred_at": times,
        "recorded_at": times,
        **_stamps(numbers, times),
    }
    kinds = {field.name: field.type for field in pa.schema(EVENT_COLUMNS)}
    return pa.table({name: each.cast(kinds.get(name, each.type)) for name, each in columns.items()})


def _rates(rows: int) -> pa.Table:
    """Versions of each account's rate, spread over the same thirty days."""
    accounts = max(1, rows // 15)
    numbers = np.arange(accounts * RATES_PER_ACCOUNT)
    step = 30 * 86_400_000_000 // numbers.size
    times = pa.array(numbers * step, pa.int64()).cast(UTC_MICROS)
    return pa.table(
        {
            "account": pa.array(numbers % accounts),
            "at": times,
            "rate": pa.array(numbers % 97 / 100),
            "committed_at": times,
            "_operation": pa.array(["insert"] * numbers.size),
            **_stamps(numbers, times),
        }
    )


def _stamps(numbers: np.ndarray, times: pa.Array) -> dict[str, pa.Array]:
    return {
        "_epoch": pa.array(np.ones(numbers.size, np.int64)),
        "_late": pa.array(np.zeros(numbers.size, bool)),
        "_time": times,
        "_seq_hi": pa.array(numbers),
        "_seq_lo": pa.array(np.zeros(numbers.size, np.int64)),
        "_ingested_at": times,
    }


def folded(lake: str, scratch: str) -> None:
    """Make the history of the rates, as the pipeline does before anything joins it."""
    tables, place = Tables(), Lake.at(Path(lake))
    spark = session(scratch)
    done = HistoryTables(spark, place, tables).fold(RATES, Epoch(1))
    assert done is not None, "there are rates"
    manifest = Manifest(place, tables)
    before = manifest.projected()["typed"]
    known = {**before.tables, RATES.name: done}
    manifest.project(replace(before, tables=known), again=True)


def session(scratch: str) -> SparkSession:
    """Start Spark for one process of a benchmark."""
    return start_session(
        resolve("spark").spark_jars(),
        scratch=Path(scratch),
        memory="2g",
        java_home=find_java().home,
    )


def main(lake: str, query: str, scratch: str) -> None:
    """Build and print what it took. The start of Spark is not in the seconds, but in the rest."""
    spark = session(scratch)
    seen: list[tuple[float, BuildProgress]] = []
    started = time.perf_counter()

    def note(progress: BuildProgress) -> None:
        seen.append((time.perf_counter() - started, progress))

    built = Builder(spark, Site(lake=Lake.at(Path(lake))), note).build(query)
    seconds = time.perf_counter() - started
    rows = seen[-1][1].rows
    figures = {
        "s": seconds,
        "rows_per_s": rows / seconds,
        "slices": float(str(built.detail["slices"])),
        **usage(),
        **told_of_the_end(seen, seconds),
    }
    figures["rows_per_cpu_s"] = rows / figures["all_cpu_s"]
    print(json.dumps(figures))


def told_of_the_end(
    seen: Sequence[tuple[float, BuildProgress]], seconds: float
) -> dict[str, float]:
    """Compare the time left, as it was told behind the first tenth, with what was left.

    Of each telling, by how much of the time that was left the truth lies outside of the range, and
    the range's middle beside it; the means over all tellings while a tenth or more was left.
    """
    outside, beside = [], []
    for at, progress in seen:
        left = seconds - at
        if progress.eta_s is None or progress.done < _FIRST_TENTH * progress.rows:
            continue
        if left < _FIRST_TENTH * seconds:
            continue
        low, high = progress.eta_s
        outside.append(max(low - left, left - high, 0.0) / left)
        beside.append(abs((low + high) / 2 - left) / left)
    told = max(1, len(outside))
    within = sum(each <= 0.2 for each in outside)
    return {
        "eta_told": float(len(outside)),
        "eta_within_a_fifth": within / told,
        "eta_outside_mean": sum(outside) / told,
        "eta_middle_off_mean": sum(beside) / told,
    }


if __name__ == "__main__":
    (main if len(sys.argv) == 4 else folded)(*sys.argv[1:])
