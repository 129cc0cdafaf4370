"""What replays cost as their inputs grow: building a generation, comparing two. No stack."""

from __future__ import annotations

from argparse import ArgumentParser

from benchmarks.harness import Context, Figures
from benchmarks.replay import building, verifying

NAME = "replay"
CONDITIONS = (
    "a generation built from typed tables by Spark with two threads, counts and sums by hour and "
    "by one of 500 keys, each slice a guarded commit on a local disk; and two Delta tables of six "
    "columns compared as `replay verify` does, each pair in a process of its own"
)
LINES = ("build", "verify")


def add_options(parser: ArgumentParser) -> None:
    """Add the lines and sizes."""
    group = parser.add_argument_group("replay")
    group.add_argument("--replay-lines", nargs="+", choices=LINES, default=LINES)
    group.add_argument(
        "--replay-rows", type=int, nargs="+", default=[1_000_000, 5_000_000], metavar="N"
    )
    group.add_argument(
        "--replay-slices", type=int, nargs="+", default=[1, 10], help="replay: slices of a build"
    )


def run(context: Context) -> Figures:
    """Measure the chosen lines at all sizes once."""
    figures: dict[str, float] = {}
    for rows in context.options.replay_rows:
        if "build" in context.options.replay_lines:
            spark = context.once("spark", lambda: building.session(context.folder / "spark"))
            for slices in context.options.replay_slices:
                found = building.measure(spark, context.folder, rows, slices)
                figures |= _told(context, f"build.{rows}.{slices}", found)
        if "verify" in context.options.replay_lines:
            for case, every in verifying.CASES.items():
                found = verifying.measure(context.folder, rows, every)
                figures |= _told(context, f"verify.{rows}.{case}", found)
    return figures


def _told(context: Context, line: str, found: Figures) -> dict[str, float]:
    context.progress(f"  {line}: " + ", ".join(f"{name} {v:,.1f}" for name, v in found.items()))
    return {f"{line}.{name}": value for name, value in found.items()}
