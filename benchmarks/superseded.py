"""What appends and persistent subscriptions cost while an old snapshot keeps superseded rows.

The baseline is the store of another checkout: `--superseded-before DIR`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from benchmarks.eventstore.checkouts import driven
from benchmarks.eventstore.products import ROOT
from benchmarks.harness import Context, Figures

NAME = "superseded"
CONDITIONS = (
    "the Python API, one task: an append to a quiet stream, one to a stream that was appended to "
    "so many times, and an append, next and ack of a subscription that had so many rounds, all "
    "since a snapshot was opened that is still open; each answer after the commit is on disk"
)


def add_options(parser: ArgumentParser) -> None:
    """Add how many versions are superseded, and the checkout to compare with."""
    group = parser.add_argument_group("superseded")
    group.add_argument(
        "--superseded-versions", type=int, nargs="+", default=[100_000, 1_000_000], metavar="N"
    )
    group.add_argument(
        "--superseded-before", type=Path, default=ROOT, help="checkout of the baseline"
    )


def run(context: Context) -> Figures:
    """Measure this checkout."""
    return _measured(context, "now", ROOT)


def BASELINE(context: Context) -> Figures:
    """Measure the other checkout."""
    return _measured(context, "before", context.options.superseded_before)


def _measured(context: Context, name: str, root: Path) -> Figures:
    versions = context.options.superseded_versions
    return driven(context, "superseded", name, root, *versions, at_most_s=1_800.0)
