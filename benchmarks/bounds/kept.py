"""What an epoch costs as the process that makes it grows old, and its handles with it."""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from benchmarks.bounds.epochs import World

TABLES, FILES = 200, 1_000
PART, PARTS = 50, 5


def measure(folder: Path, options: Namespace, progress: Callable[[str], None]) -> dict[str, float]:
    """Measure epochs in which one table has a change, part by part: medians of each fifty."""
    found: dict[str, float] = {}
    world = World.made(folder, TABLES, FILES)
    for part in range(1, (2 if getattr(options, "quick", False) else PARTS) + 1):
        figures = world.epochs(1, most=PART - 2, seconds=600.0)
        name = f"until_{part * PART}_epochs"
        found |= {f"{name}.{figure}": value for figure, value in figures.items()}
        took, spent = figures["epoch_ms"], figures["cpu_ms"]
        progress(f"  {name}: {took:,.0f} ms, {spent:,.0f} ms of processors")
    world.current.close()
    shutil.rmtree(folder)
    return found
