"""What grows with tables, files and rows: the cost of an epoch, of a large transaction, of a base.

No stack: epochs, folds and merges run as in the pipeline, over a source and a lake that are
simulated, so that sizes which take days to come about are there within a minute.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from benchmarks.bounds import bases, epochs, kept, transactions
from benchmarks.harness import Context, Figures, Result

NAME = "bounds"
CONDITIONS = (
    "one epoch after another, each with its manifest rows, log append and folds, exactly once and "
    "guarded as in the pipeline; files are handed to the file system without waiting for the disk; "
    "no Kafka, no Spark stream"
)
LINES = {
    "epochs": epochs.measure,
    "kept": kept.measure,
    "transactions": transactions.measure,
    "bases": bases.measure,
}


def add_options(parser: ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument(
        "--bounds-lines", help=f"bounds: which of {', '.join(LINES)}, with commas; all if left out"
    )
    transactions.add_options(parser)
    bases.add_options(parser)


def run(context: Context) -> Figures:
    """Measure the chosen lines once."""
    figures: dict[str, float] = {}
    for name in _chosen(context.options):
        found = LINES[name](context.folder / name, context.options, context.progress)
        figures |= {f"{name}.{figure}": value for figure, value in found.items()}
    return figures


def summary(result: Result) -> str:
    """Return nothing more: each case was told when it was done."""
    return f"  {len(result.figures)} figures"


def _chosen(options: Namespace) -> list[str]:
    named = getattr(options, "bounds_lines", None)
    return named.split(",") if named else list(LINES)
