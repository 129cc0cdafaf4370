"""How fast a store comes back from the lake's log into an empty PostgreSQL, and is compared."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.eventstore.cluster import running
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.eventstore.lines import event_data
from benchmarks.eventstore.seed import CATEGORY, EVENTS_PER_STREAM, SCHEMA_ID, TYPE, schema_json
from benchmarks.harness import Context, Figures
from eventstore.recovery.comparison import compare
from eventstore.recovery.events import LakeEvents
from eventstore.recovery.rebuild import rebuild
from eventstore.recovery.stored_events import StoredEvents
from kernel.positions import Epoch
from lake.layout import Lake, events_log
from lake.table_columns import AVRO_SCHEMAS, EVENTS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from schemas.json_codec import JsonCodec
from schemas.wire import frame

NAME = "store_rebuild"
CONDITIONS = (
    "a log of one category on a local disk, 200 bytes of JSON an event, into an empty PostgreSQL "
    "with fsync, indexes built after the copy; then every event compared with the log by its bytes"
)
_STORE = str(uuid.UUID(int=1))
_PART = 200_000


def add_options(parser: ArgumentParser) -> None:
    """Add the size."""
    group = parser.add_argument_group("store_rebuild")
    group.add_argument("--store-events", type=int, default=1_000_000, metavar="N")


def run(context: Context) -> Figures:
    """Rebuild one store and compare it."""
    events = context.options.store_events
    lake = Lake.at(context.folder / "lake")
    if not Path(lake.path("log/_schemas")).exists():
        _write(lake, events)
    cluster = context.once("cluster", lambda: running(context.folder))
    dsn = cluster.create("rebuilt")
    source = LakeEvents(lake)
    context.notes["load"] = os.getloadavg()
    started, took = time.perf_counter(), cpu_seconds(pids := [os.getpid(), cluster.pid])
    asyncio.run(rebuild(source, dsn, show=lambda p: context.progress(f"  {p}")))
    rebuilt, took = time.perf_counter(), cpu_seconds(pids) - took

    async def compared() -> bool:
        async with StoredEvents.open(dsn, lake.root) as stored:
            return (await compare(source, stored)).equal

    equal = asyncio.run(compared())
    done = time.perf_counter()
    return {
        "rebuilt_events_per_s": events / (rebuilt - started),
        "rebuilt_cpu_s_per_million": took / events * 1e6,
        "compared_events_per_s": events / (done - rebuilt),
        "equal": float(equal),
        "load_1m": os.getloadavg()[0],
    }


def _write(lake: Lake, events: int) -> None:
    """Write the log: events of a stream lie far apart, as those of living entities do."""
    writer = ArrowWriter(Tables())
    data = frame(SCHEMA_ID, JsonCodec(schema_json()).encode(event_data()))
    streams = max(1, events // EVENTS_PER_STREAM)
    for epoch, first in enumerate(range(0, events, _PART), start=1):
        numbers = np.arange(first, min(first + _PART, events))
        count = len(numbers)
        times = pa.array(numbers * 1_000, pa.int64()).cast(EVENTS.field("recorded_at").type)
        columns: dict[str, object] = {
            "epoch": np.full(count, epoch),
            "position": numbers + 1,
            "category": [CATEGORY] * count,
            "type": [TYPE] * count,
            "stream": [f"{CATEGORY}-{number % streams}" for number in numbers],
            "version": numbers // streams,
            "event_id": [str(uuid.UUID(int=(int(n) << 80) | (7 << 76) | 5)) for n in numbers],
            "occurred_at": times,
            "recorded_at": times,
            "schema_id": np.full(count, SCHEMA_ID, np.int32),
            "data_format": np.zeros(count, np.int32),
            "data": [data] * count,
            "metadata": ["{}"] * count,
            "tags": [[]] * count,
            "store_id": [_STORE] * count,
        }
        arrays = [
            pa.array(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type)
            for f in EVENTS
        ]
        path = lake.path(events_log(_STORE))
        table = pa.table(arrays, schema=EVENTS)
        writer.append(path, table, Guard("ingest", Epoch(epoch)), partition_by=["category"])
    kept = {"epoch": [1], "schema_id": [SCHEMA_ID], "schema": [schema_json()]}
    table = pa.table(kept, schema=AVRO_SCHEMAS)
    writer.append(lake.avro_schemas, table, Guard("log/_schemas", Epoch(1)))
