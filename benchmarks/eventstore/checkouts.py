"""The store of one checkout or another, driven by a program of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.eventstore.cluster import running
from benchmarks.eventstore.products import ROOT
from benchmarks.harness import Context, Figures
from kernel.errors import Unavailable


def driven(
    context: Context, driver: str, name: str, root: Path, *values: object, at_most_s: float
) -> Figures:
    """Run this checkout's driver with the packages of another one, on a new database."""
    cluster = context.once("postgres", lambda: running(context.folder))
    dsn = cluster.create(f"{driver}_{name}")
    ended = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "eventstore" / f"{driver}.py", dsn]
        + [str(value) for value in values],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=at_most_s,
        check=False,
    )
    if ended.returncode != 0:
        raise Unavailable(f"the driver ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures
