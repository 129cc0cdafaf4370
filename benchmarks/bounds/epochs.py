"""The cost of an epoch by tables, files of the log, and how many tables have a change in it."""

from __future__ import annotations

import json
import shutil
import statistics
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, Schema, Transaction
from deltalake.transaction import AddAction

from benchmarks.bounds.source import (
    FIRST_ID,
    SOURCE,
    columns_of,
    decoded,
    end_of,
    registry,
    table_name,
)
from kernel.positions import Epoch
from lake.layout import Lake, changes_log
from lake.table_columns import CHANGES
from lake.tables import TableAt, Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.current.tables import CurrentTables, current_name
from pipeline.position.progress import Progress

CASES = ((10, 1_000), (200, 1_000), (1_000, 1_000), (10, 100_000))
"""Tables of the source, and files of its log."""
PAST = 1_000
"""Epochs before the first one that is measured."""
ROWS = 100
_END = f"{SOURCE}.transaction"


def measure(folder: Path, options: Namespace, progress: Callable[[str], None]) -> dict[str, float]:
    """Measure epochs in which one table has a change, and such in which 10 and all have one."""
    found: dict[str, float] = {}
    cases = CASES[:1] if getattr(options, "quick", False) else CASES
    for tables, files in cases:
        place = folder / f"{tables}-{files}"
        world = World.made(place, tables, files)
        for changed in sorted({1, 10, tables}):
            name = f"{tables}_tables_{files}_files_{changed}_changed"
            found |= {f"{name}.{k}": v for k, v in world.epochs(changed).items()}
            took, spent = (found[f"{name}.{figure}_ms"] for figure in ("epoch", "cpu"))
            progress(f"  {name}: {took:,.0f} ms, {spent:,.0f} ms of processors")
        world.current.close()
        shutil.rmtree(place)
    return found


@dataclass(slots=True)
class World:
    """A lake with a past, and an ingest that goes on in it."""

    lake: Lake
    tables: int
    ingest: Ingest
    current: CurrentTables
    offsets: dict[str, int] = field(default_factory=dict)
    lsn: int = 1_000_000
    order: int = 999_990

    @classmethod
    def made(cls, folder: Path, tables: int, files: int) -> World:
        """Make a lake of small tables, whose log has so many small files."""
        lake = Lake.at(folder)
        handles = Tables(owned=lake.written_by_ingest)
        at = {changes_log(SOURCE): _past_log(lake, handles, tables, files)}
        writer = ArrowWriter(handles)
        rows = pa.table({"id": FIRST_ID + np.arange(ROWS), "size": np.arange(ROWS)})
        for number in range(tables):
            name = current_name(SOURCE, table_name(number))
            version = writer.append(lake.path(name), rows, Guard(name, Epoch(PAST)))
            at[name] = TableAt(version=version, as_of_epoch=PAST)
        progress = Progress()
        cut = progress.cut(SOURCE)
        cut.hold()
        cut.release(copied={table_name(n) for n in range(tables)}, since=0)
        cut.lsn = 900_000
        manifest = Manifest(lake, handles)
        manifest.bind(
            Bound(epoch=Epoch(PAST), run_id="b", batch_id=0, start={}, end={}, installs=())
        )
        manifest.commit(_committed(progress, at))
        known = registry()
        current = CurrentTables(lake, handles, known)
        ingest = Ingest(
            lake,
            handles,
            manifest,
            known,
            lateness=lambda _: timedelta(0),
            broker=_Nobody(),
            current=current,
        )
        return cls(lake=lake, tables=tables, ingest=ingest, current=current)

    def epochs(self, changed: int, *, most: int = 12, seconds: float = 8.0) -> dict[str, float]:
        """Run epochs with one changed row in each of some tables; return medians."""
        took: list[float] = []
        spent: list[float] = []
        steps: list[dict[str, float]] = []
        began = time.perf_counter()
        for number in range(most + 2):
            batch, bound = self._batch(changed, number)
            start, worked = time.perf_counter(), time.process_time()
            done = self.ingest.run_epoch(bound, lambda batch=batch: batch)
            if number >= 2 or changed > 100:
                took.append((time.perf_counter() - start) * 1_000)
                spent.append((time.process_time() - worked) * 1_000)
                steps.append(dict(done.timings_ms))
            if time.perf_counter() - began > seconds and took:
                break
        return {
            "epoch_ms": statistics.median(took),
            "cpu_ms": statistics.median(spent),
            **{f"{name}_ms": statistics.median(each[name] for each in steps) for name in steps[0]},
        }

    def _batch(self, changed: int, number: int) -> tuple[pa.Table, Bound]:
        """Make one transaction with a row in each of the tables."""
        lsn, transaction = self.lsn, f"{self.lsn}"
        names = [table_name((number * changed + i) % self.tables) for i in range(changed)]
        start = {f"{SOURCE}.{t}": self.offsets.get(t, 0) for t in names} | {
            _END: self.offsets.get(_END, 0)
        }
        parts = []
        for place, table in enumerate(names):
            columns = columns_of(
                table,
                np.array([FIRST_ID + number % ROWS]),
                np.array([FIRST_ID + number]),
                transaction=transaction,
                lsn=lsn + 10 * place,
                order=self.order,
                first=start[f"{SOURCE}.{table}"],
            )
            parts.append(decoded(columns))
            self.offsets[table] = start[f"{SOURCE}.{table}"] + 1
        end_lsn = lsn + 10 * changed
        counts = dict.fromkeys(names, 1)
        parts.append(end_of(transaction, end_lsn, counts, start[_END]))
        self.offsets[_END] = start[_END] + 1
        self.order, self.lsn = end_lsn, end_lsn + 100
        bound = Bound(
            epoch=self.ingest.next_epoch,
            run_id="b",
            batch_id=number,
            start={topic: {"0": at} for topic, at in start.items()},
            end={topic: {"0": at + 1} for topic, at in start.items()},
        )
        return pa.concat_tables(parts), bound


class _Nobody:
    """Stands for the broker: nothing is asked of it here."""

    def publish(self, offsets: object) -> None:
        """Nobody looks at the lag."""

    def ends(self, source: str) -> dict[str, dict[str, int]]:
        """No transaction was begun twice."""
        raise AssertionError(source)


def _past_log(lake: Lake, tables: Tables, count: int, files: int) -> TableAt:
    """Make a log with so many files of one row each, of which only the log of Delta knows."""
    name = changes_log(SOURCE)
    table = tables.ensure(lake.path(name), CHANGES, partition_by=["table"])
    integers = [f.name for f in CHANGES if pa.types.is_integer(f.type)]
    adds = []
    for number in range(files):
        values = dict.fromkeys(integers, number) | {"epoch": 1 + number * (PAST - 1) // files}
        stats = {
            "numRecords": 1,
            "minValues": values,
            "maxValues": values,
            "nullCount": dict.fromkeys(integers, 0),
        }
        adds.append(
            AddAction(
                f"table={table_name(number % count)}/part-{number:08}.parquet",
                4_000,
                {"table": table_name(number % count)},
                1_356_998_400_000,
                True,
                json.dumps(stats),
            )
        )
    table.create_write_transaction(
        adds,
        mode="append",
        schema=Schema.from_arrow(CHANGES),
        partition_by=["table"],
        commit_properties=CommitProperties(app_transactions=[Transaction(name, PAST)]),
    )
    table.update_incremental()
    table.create_checkpoint()
    tables.forget(lake.path(name))
    opened = tables.open(lake.path(name))
    assert opened is not None
    return TableAt(version=opened.version(), as_of_epoch=PAST)


def _committed(progress: Progress, at: dict[str, TableAt]) -> Committed:
    return Committed(
        epoch=Epoch(PAST),
        run_id="b",
        batch_id=0,
        end={},
        progress=progress.to_json(),
        heads={},
        cuts={SOURCE: progress.cut(SOURCE).lsn},
        pending_from={SOURCE: PAST + 1},
        tables=at,
        counts={},
        timings_ms={},
        at=datetime.now(UTC),
    )
