"""What replays cost as their tables grow: comparing two generations. No stack."""

from __future__ import annotations

from argparse import ArgumentParser

from benchmarks.harness import Context, Figures
from benchmarks.replay import verifying

NAME = "replay"
CONDITIONS = (
    "two Delta tables of six columns on a local disk, compared as `replay verify` does, each in a "
    "process of its own: equal, with one row in a hundred different, with every row different; "
    "by the command's process, and by executors of a Spark session on the same cores (its start "
    "counts)"
)


def add_options(parser: ArgumentParser) -> None:
    """Add the sizes."""
    group = parser.add_argument_group("replay")
    group.add_argument(
        "--replay-rows", type=int, nargs="+", default=[1_000_000, 5_000_000], metavar="N"
    )


def run(context: Context) -> Figures:
    """Compare pairs of tables of all sizes once."""
    figures: dict[str, float] = {}
    for rows in context.options.replay_rows:
        for case, every in verifying.CASES.items():
            for where in ("driver", "executors"):
                found = verifying.measure(
                    context.folder, rows, every, on_executors=where == "executors"
                )
                told = f"verify.{rows}.{case}.{where}"
                figures |= {f"{told}.{name}": value for name, value in found.items()}
                context.progress(f"  {rows:,} rows, {case}, {where}: {dict(found)}")
    return figures
