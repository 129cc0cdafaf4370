"""What readers of a projection notice of swaps: how long reads take, and whether all is whole.

Generations of one projection are built one after another and each is swapped in, while readers of
their own processes read without a pause worth the name. All rows of a generation have its mark, so
that a read that found two marks saw a half.
"""

from __future__ import annotations

import bisect
import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
from deltalake import DeltaTable

from benchmarks.replay import building
from benchmarks.replay.usage import usage
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from projections.serve.lookups import Lookups
from projections.serve.query import LakeQueries
from projections.serve.row_values import key_of
from replay.book import Replay
from replay.build import Builder
from replay.subject import Site
from replay.swap import swap_set

NAME = "newest"
SWAPS = 50
_REST_S = 0.3
"""Between a build and its swap, and behind the swap: reads of this time count as alone."""
_PAUSE_S = 0.005
_KEYS, _LOOK_EVERY_S = 20, 0.05
_HELD_BYTES = 1 << 30

Mark = Callable[[], set[int]]
"""Reads the projection once; returns the marks that were found in it."""
Span = tuple[float, float]


def measure(folder: Path, rows: int, swaps: int) -> Mapping[str, float]:
    """Swap so many generations of a projection of so many input rows, in a process of its own."""
    lake = building.filled(folder, rows)
    command = [sys.executable, "-m", "benchmarks.replay.swapping"]
    arguments = [str(lake), str(folder / "spark"), str(swaps)]
    done = subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(lake: str, scratch: str, swaps: int) -> None:
    """Build, start the readers, build and swap so often, and print what they noticed."""
    site = Site(lake=Lake.at(Path(lake)))
    builder = Builder(building.session(scratch), site, lambda _: None)
    _swap(site, builder, mark=0)
    stop = Path(scratch) / "stop"
    stop.unlink(missing_ok=True)
    readers = {each: _started(each, lake, stop) for each in READERS}
    builds, spans = [], []
    for mark in range(1, swaps + 1):
        built, swapped = _swap(site, builder, mark)
        builds.append(built)
        spans.append(swapped)
    stop.touch()
    figures = {
        "swaps": float(swaps),
        "swap_s_p50": float(np.median([end - begin for begin, end in spans])),
        "swap_s_max": max(end - begin for begin, end in spans),
        "rows": float(_rows(site)),
        **usage(),
    }
    for name, reader in readers.items():
        told, _ = reader.communicate(timeout=120)
        if reader.returncode:
            raise SystemExit(f"the reader {name} died")
        noticed = _noticed(json.loads(told), spans, builds)
        figures |= {f"{name}.{figure}": value for figure, value in noticed.items()}
    print(json.dumps(figures))


def _swap(site: Site, builder: Builder, mark: int) -> tuple[Span, Span]:
    text = building.QUERIES[NAME].replace("amount,", f"amount, CAST({mark} AS INT) AS mark,", 1)
    began = time.time()
    built = builder.build(NAME, text=text)
    ready = time.time()
    time.sleep(_REST_S)
    swapping = time.time()

    def bring(_: Site, replay: Replay, epoch: Epoch, live: bool) -> Replay:
        return builder.catch_up(replay, epoch, live=live)

    swap_set(site, [built], bring, reason="each generation has another mark")
    swapped = time.time()
    time.sleep(_REST_S)
    return (began, ready), (swapping, swapped)


def _started(reader: str, lake: str, stop: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.replay.swapping", reader, lake, str(stop)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None, "it is a pipe"
    process.stdout.readline()  # It has read once.
    return process


def read(reader: str, lake: str, stop: str) -> None:
    """Read until the file is there; print when each read began and ended, and what it found."""
    marks, over, told = READERS[reader](Lake.at(Path(lake))), Path(stop), []
    marks()
    # As the service does: to walk through all that was loaded takes a tenth of a second.
    gc.freeze()
    print(flush=True)
    while not over.exists():
        began = time.time()
        try:
            found: Sequence[int] | str = sorted(marks())
        except Exception as error:  # A failed read is what is looked for.
            found = repr(error)
        told.append((began, time.time(), found))
        time.sleep(_PAUSE_S)
    print(json.dumps(told))


def _by_key(lake: Lake) -> Mark:
    """Answer as the service does: of the last look, while the next one reads what is new."""
    lookups = Lookups(lake, most_bytes=_HELD_BYTES, wait_s=_LOOK_EVERY_S)
    first = lookups.look().projections[NAME]
    rows = lookups.rows(first)
    columns = [rows.schema.field(name) for name in rows.key]
    keys = [key_of(str(number), columns) for number in range(_KEYS)]
    last = [lookups.look()]

    def looking() -> None:
        while True:
            lookups.asked_for(NAME)
            last[0] = lookups.look()
            time.sleep(_LOOK_EVERY_S)

    threading.Thread(target=looking, daemon=True).start()

    def marks() -> set[int]:
        look = last[0]
        held = look.rows[NAME] if NAME in look.rows else look.before[NAME][1]
        return set(held.find(keys)["mark"].to_pylist())

    return marks


def _by_name(lake: Lake) -> Mark:
    queries = LakeQueries(lake)

    def marks() -> set[int]:
        found = queries.ask(f"SELECT min(mark), max(mark) FROM {NAME}").rows.to_pylist()
        return {value for row in found for value in row.values()}

    return marks


def _by_path(lake: Lake) -> Mark:
    def marks() -> set[int]:
        table = DeltaTable(lake.path(f"projection/{NAME}")).to_pyarrow_dataset()
        (found,) = duckdb.from_arrow(table).aggregate("min(mark), max(mark)").fetchall()
        return set(found)

    return marks


READERS: Mapping[str, Callable[[Lake], Mark]] = {
    "by_key": _by_key,
    "by_name": _by_name,
    "by_path": _by_path,
}


def _noticed(
    told: Sequence[tuple[float, float, Sequence[int] | str]],
    swaps: Sequence[Span],
    builds: Sequence[Span],
) -> dict[str, float]:
    """Compare reads that overlap a swap with those beside neither a swap nor a build.

    `blind_ms_max`: the longest time between the ends of two reads that overlap a swap, one after
    the other: so long had a reader no newer answer than it had.
    """
    failed = [found for *_, found in told if isinstance(found, str)]
    halves = [found for *_, found in told if not isinstance(found, str) and len(found) != 1]
    seen = [found[0] for *_, found in told if not isinstance(found, str) and len(found) == 1]
    beside = [1e3 * (end - begin) for begin, end, _ in told if _overlaps(begin, end, swaps)]
    busy = sorted([*swaps, *builds])
    alone = [1e3 * (end - begin) for begin, end, _ in told if not _overlaps(begin, end, busy)]
    gaps = [
        1e3 * (after[1] - before[1])
        for before, after in pairwise(told)
        if _overlaps(before[1], after[1], swaps)
    ]
    for each in failed[:3]:
        print(each, file=sys.stderr)
    return {
        "reads": float(len(told)),
        "failed": float(len(failed)),
        "halves": float(len(halves)),
        "backwards": float(sum(later < earlier for earlier, later in pairwise(seen))),
        "marks": float(len(set(seen))),
        "alone_ms_p50": float(np.median(alone)),
        "alone_ms_p99": float(np.quantile(alone, 0.99)),
        "swap_ms_p50": float(np.median(beside)),
        "swap_ms_p99": float(np.quantile(beside, 0.99)),
        "swap_ms_max": max(beside),
        "blind_ms_max": max(gaps),
    }


def _overlaps(begin: float, end: float, spans: Sequence[Span]) -> bool:
    """Say whether a time overlaps one of the spans, which are in order and apart."""
    at = bisect.bisect_right(spans, (end, float("inf"))) - 1
    return at >= 0 and spans[at][1] > begin


def _rows(site: Site) -> int:
    table = Tables().open(site.lake.path(f"projection/{NAME}"))
    assert table is not None, "it was swapped"
    return int(sum(table.get_add_actions().column("num_records").to_pylist()))


if __name__ == "__main__":
    if sys.argv[1] in READERS:
        read(*sys.argv[1:])
    else:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
