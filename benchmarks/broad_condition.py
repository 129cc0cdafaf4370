"""What one condition that is hard to judge costs those who append beside it.

The baseline is the store of another checkout: `--broad-condition-before DIR`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

from benchmarks.eventstore.cluster import running
from benchmarks.eventstore.products import ROOT
from benchmarks.harness import Context, Figures
from kernel.errors import Unavailable

NAME = "broad_condition"
CONDITIONS = (
    "the Python API: eight tasks append single events, a ninth asks again and again with a "
    "condition of 16 items over two tags that 200,000 positions have and none has both; each "
    "answer after the commit is on disk; gapless positions in commit order"
)
_DRIVER = ROOT / "benchmarks" / "eventstore" / "broad.py"
_SLACK_S = 120.0


def add_options(parser: ArgumentParser) -> None:
    """Add how long a repetition lasts, and the checkout to compare with."""
    group = parser.add_argument_group("broad_condition")
    group.add_argument("--broad-condition-seconds", type=float, default=20.0)
    group.add_argument(
        "--broad-condition-before", type=Path, default=ROOT, help="checkout of the baseline"
    )


def run(context: Context) -> Figures:
    """Measure this checkout."""
    return _measured(context, "now", ROOT)


def BASELINE(context: Context) -> Figures:
    """Measure the other checkout."""
    return _measured(context, "before", context.options.broad_condition_before)


def _measured(context: Context, name: str, root: Path) -> Figures:
    cluster = context.once("postgres", lambda: running(context.folder))
    dsn = cluster.create(f"broad_{name}")
    seconds = context.options.broad_condition_seconds
    ended = subprocess.run(
        [sys.executable, _DRIVER, dsn, str(seconds)],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=seconds + _SLACK_S,
        check=False,
    )
    if ended.returncode != 0:
        raise Unavailable(f"the driver ended with {ended.returncode}: {ended.stderr[-2_000:]}")
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures
