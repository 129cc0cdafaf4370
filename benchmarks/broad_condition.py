"""What one condition that is hard to judge costs those who append beside it.

The baseline is the store of another checkout: `--broad-condition-before DIR`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from benchmarks.eventstore.checkouts import driven
from benchmarks.eventstore.products import ROOT
from benchmarks.harness import Context, Figures

NAME = "broad_condition"
CONDITIONS = (
    "the Python API: eight tasks append single events, a ninth asks again and again with a "
    "condition of 16 items over two tags that 200,000 positions have and none has both; each "
    "answer after the commit is on disk; gapless positions in commit order"
)
_SLACK_S = 300.0


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
    seconds = context.options.broad_condition_seconds
    return driven(context, "broad", name, root, seconds, at_most_s=seconds + _SLACK_S)
