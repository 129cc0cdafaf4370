"""Bytes written to a large table while one row in a hundred changes, at random.

No stack: both ways get the same epochs of changes, so that what differs is what they write.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.cdc.lines import NAIVE, OURS, Scale
from benchmarks.cdc.world import World
from kernel.positions import Epoch
from lake.layers import tail_name
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from pipeline.current.tail import TailTables

NAME = "current/bench.public.large"
PER_EPOCH = 1_000
_CHUNK = 1_000_000


def measure(world: World, scale: Scale) -> dict[str, float]:
    """Fold 1 % of the rows, a thousand in an epoch a second, by tail and by a merge per epoch.

    Bytes are per epoch: ours over all epochs, with every fold that they lead to; of the merge per
    epoch over its first ten, since each of them rewrites alike.
    """
    folder = world.folder / "rewriting"
    shutil.rmtree(folder, ignore_errors=True)
    epochs = max(2, scale.rewritten_rows // 100 // PER_EPOCH)
    ours, ours_s = _by_tail(Lake.at(folder / "tail"), scale.rewritten_rows, epochs)
    some = min(10, epochs)
    naive, naive_s = _by_merge(Lake.at(folder / "merge"), scale.rewritten_rows, some)
    shutil.rmtree(folder)
    return {
        f"{OURS}.bytes_per_epoch": ours / epochs,
        f"{OURS}.writing_ms_per_epoch": 1_000 * ours_s / epochs,
        f"{OURS}.times_less_than_naive": (naive / some) / (ours / epochs),
        f"{NAIVE}.bytes_per_epoch": naive / some,
        f"{NAIVE}.writing_ms_per_epoch": 1_000 * naive_s / some,
        f"{NAIVE}.epochs": float(some),
        f"{OURS}.epochs": float(epochs),
    }


def _by_tail(lake: Lake, rows: int, epochs: int) -> tuple[float, float]:
    tables = Tables()
    _fill(lake, tables, rows)
    before, spent = _written(lake), 0.0
    tails = TailTables(lake, tables)
    for epoch, changes in _changes(rows, epochs):
        began = time.perf_counter()
        tails.add(NAME, changes, ["id"], epoch)
        spent += time.perf_counter() - began
        # An epoch a second: what is folded by the clock is folded as often as live.
        time.sleep(max(0.0, 1.0 - (time.perf_counter() - began)))
    tails.settle(NAME)
    tails.close()
    return _written(lake) - before, spent


def _by_merge(lake: Lake, rows: int, epochs: int) -> tuple[float, float]:
    tables = Tables()
    _fill(lake, tables, rows)
    before, began = _written(lake), time.perf_counter()
    writer = ArrowWriter(tables)
    for epoch, changes in _changes(rows, epochs):
        writer.merge(lake.path(NAME), changes, Guard(NAME, epoch), keys=["id"])
    return _written(lake) - before, time.perf_counter() - began


def _fill(lake: Lake, tables: Tables, rows: int) -> None:
    writer = ArrowWriter(tables)
    for part, start in enumerate(range(0, rows, _CHUNK), start=1):
        frame = _rows(range(start, min(rows, start + _CHUNK)), "new")
        writer.append(lake.path(NAME), frame, Guard("fill", Epoch(part)))


def _changes(rows: int, epochs: int) -> Iterator[tuple[Epoch, pa.Table]]:
    chance = random.Random(5)
    for number in range(1, epochs + 1):
        frame = _rows(chance.sample(range(rows), PER_EPOCH), f"s{number}")
        yield Epoch(number), frame.append_column(OP, pa.array([UPSERT] * PER_EPOCH))


def _rows(ids: range | list[int], status: str) -> pa.Table:
    numbers = pa.array(ids, pa.int64())
    mixed = pc.multiply(numbers, 2654435761)
    note = pc.binary_join_element_wise(mixed.cast(pa.string()), numbers.cast(pa.string()), " ")
    return pa.table(
        {"id": numbers, "status": pa.array([status] * len(numbers)), "seen": mixed, "note": note}
    )


def _written(lake: Lake) -> float:
    """Return the bytes of all files of base and tail, also of those that no version has any more.

    Nothing is vacuumed meanwhile.
    """
    roots = (Path(lake.path(NAME)), Path(lake.path(tail_name(NAME))))
    return float(sum(f.stat().st_size for root in roots for f in root.glob("*.parquet")))
