"""Nexmark's events as a lake that ingest left behind, and as lines for those who read files.

Records go into the log as they would have come from Kafka, and typed rows are made of them as the
pipeline makes them. All are on time: what is measured is the computation, not its corrections.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.loaded_epoch import commit_load
from benchmarks.nexmark.generator import Setting, events
from kernel.positions import Epoch
from lake.layout import Lake, topics_log
from lake.table_columns import TOPICS
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected
from pipeline.history.tables import HistoryTables
from pipeline.typed.topic_rows import TopicRows
from pipeline.typed.topics import TypedTopics, typed_topic
from projections.run.catalog import LIVE, PROJECTION, SOURCE, DeployedCatalog, Entry
from projections.run.relations import LakeCatalog
from projections.sql.statements.parse import parse_script
from projections.sql.statements.topics import shape_of
from schemas.registry import MemoryRegistry

QUERIES_IN = Path(__file__).parent / "queries"
STREAMS = ("person", "auction", "bid")
SIDE_INPUT = "side_input"
QUERIES = tuple(f"q{number}" for number in range(23))
SEED = 2013
SIDE_KEYS = 10_000
_AT_ONCE = 50_000
"""Events of one epoch, and of one piece of a file of lines."""


def fill(folder: Path, count: int) -> Mapping[str, float]:
    """Make `lake` and `lines` in a folder; return what making the typed rows took."""
    lake, lines = Lake.at(folder / "lake"), folder / "lines"
    lines.mkdir(parents=True)
    tables = Tables()
    drawn = events(Setting(seed=SEED, events=count))
    epoch, took_s, took_cpu_s = 1, 0.0, 0.0
    _write(lake, tables, lines, SIDE_INPUT, _side_input(), Epoch(epoch))
    while piece := list(islice(drawn, _AT_ONCE)):
        epoch += 1
        by_stream: dict[str, list[dict[str, object]]] = {name: [] for name in STREAMS}
        for name, values in piece:
            by_stream[name].append(values)
        for name, rows in by_stream.items():
            _write(lake, tables, lines, name, rows, Epoch(epoch))
        began, cpu = time.perf_counter(), time.process_time()
        _make_typed(lake, tables, Epoch(epoch))
        took_s += time.perf_counter() - began
        took_cpu_s += time.process_time() - cpu
    _commit(lake, tables, Epoch(epoch), count)
    return {"typed_s": took_s, "typed_cpu_s": took_cpu_s}


def _write(
    lake: Lake,
    tables: Tables,
    lines: Path,
    name: str,
    rows: list[dict[str, object]],
    epoch: Epoch,
) -> None:
    """Append a piece of one stream to its log and to its file of lines."""
    texts = [json.dumps(_plain(row)) for row in rows]
    with (lines / f"{name}.json").open("a") as file:
        file.writelines(f"{text}\n" for text in texts)
    path = lake.path(topics_log(name))
    records = [
        _record(name, row, text, epoch, offset)
        for offset, (row, text) in enumerate(zip(rows, texts, strict=True), start=epoch * _AT_ONCE)
    ]
    logged = pa.Table.from_pylist(records, TOPICS)
    ArrowWriter(tables).append(path, logged, Guard(topics_log(name), epoch))


def _plain(row: Mapping[str, object]) -> dict[str, object]:
    """Return a row as JSON writes it; times as both Flink and we read them."""
    return {
        name: value.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def _record(
    name: str, row: Mapping[str, object], text: str, epoch: Epoch, offset: int
) -> dict[str, object]:
    at = row["at" if name == SIDE_INPUT else "date_time"]
    return {
        "epoch": epoch,
        "topic_id": "t",
        "kafka_time": at,
        "event_time": at,
        "own_time": True,
        "value": text.encode(),
        "headers": "{}",
        "topic": f"nexmark.{name}",
        "partition": 0,
        "offset": offset,
        "ingested_at": at,
        "closed_late": False,
    }


def _make_typed(lake: Lake, tables: Tables, epoch: Epoch) -> None:
    for each in parse_script((QUERIES_IN / "sources.sql").read_text()).sources:
        shape = shape_of(each)
        if shape is not None:
            TypedTopics(lake, tables).add(TopicRows(shape, MemoryRegistry()), epoch)


def _side_input() -> list[dict[str, object]]:
    """Return the bounded table of q13, as records from before the events."""
    at = datetime(2015, 7, 1, tzinfo=UTC)
    return [{"key": key, "value": f"value {key}", "at": at} for key in range(SIDE_KEYS)]


def fold_side_input(session: SparkSession, lake: Lake) -> None:
    """Make the versions of the bounded table's keys, as the pipeline does before a join with it."""
    tables = Tables()
    manifest = Manifest(lake, tables)
    known = manifest.projected()["typed"]
    deployment = DeployedCatalog(lake, tables).deployment()
    typed = [*known.tables]
    history = LakeCatalog(lake, tables, deployment, typed=typed, fields={}).history_of(SIDE_INPUT)
    assert history is not None, "it is a declared table"
    if history.name not in known.tables:
        done = HistoryTables(session, lake, tables).fold(history, known.epoch)
        assert done is not None, "it has rows"
        manifest.project(replace(known, tables={**known.tables, history.name: done}), again=True)


def _commit(lake: Lake, tables: Tables, epoch: Epoch, count: int) -> None:
    """Let the lake be one whose pipeline has everything up to an epoch, with all deployed."""
    manifest = Manifest(lake, tables)
    commit_load(manifest, epoch, count)
    at = {
        name: TableAt(version=_version(tables, lake.path(name)), as_of_epoch=epoch)
        for name in map(typed_topic, (*STREAMS, SIDE_INPUT))
    }
    manifest.project(Projected(epoch=epoch, name="typed", tables=at))
    sources = (QUERIES_IN / "sources.sql").read_text()
    declared = parse_script(sources).sources
    DeployedCatalog(lake, tables).put(
        [
            *(
                Entry(kind=SOURCE, name=each.name, generation=1, status=LIVE, text=sources)
                for each in declared
            ),
            *(
                Entry(
                    kind=PROJECTION,
                    name=name,
                    generation=1,
                    status=LIVE,
                    text=(QUERIES_IN / f"{name}.sql").read_text(),
                )
                for name in QUERIES
            ),
        ]
    )


def _version(tables: Tables, path: str) -> int:
    table = tables.open(path)
    assert table is not None, "it was written"
    return table.version()
