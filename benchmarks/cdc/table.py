"""One repetition of the table: each line by each product, and how they compare with the goals.

Figures are named `<line>.<product>.<figure>`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable

from benchmarks.cdc import catch_up, pressure, rewriting, snapshot, updates, verifying
from benchmarks.cdc.lines import GOALS, OURS, Scale, verdict
from benchmarks.cdc.world import World, running
from benchmarks.harness import Context, Figures, Result

NAME = "cdc"
CONDITIONS = (
    "PostgreSQL (fsync on), Kafka, Connect with Debezium (exactly-once source), registry, Spark "
    "and the load on the same cores; state is folded by whole source transactions; "
    "times run from the commit in the source to the file of the Delta commit that shows it"
)

Measure = Callable[[World, Scale], dict[str, float]]

FIVE = tuple(f"orders_{n}" for n in range(5))
LINES: tuple[tuple[str, Measure], ...] = (
    ("rewritten", rewriting.measure),
    ("snapshot", snapshot.measure),
    (
        "updates_1000",
        lambda world, scale: updates.measure(
            world, scale, "updates_1000", tables=("orders",), rate=1_000, seconds=scale.seconds
        ),
    ),
    (
        "updates_5000",
        lambda world, scale: updates.measure(
            world, scale, "updates_5000", tables=FIVE, rate=5_000, seconds=scale.long_seconds
        ),
    ),
    (
        "catch_up",
        lambda world, scale: _ours(catch_up.measure(world, scale)),
    ),
    ("one_transaction", lambda world, scale: _ours(pressure.one_transaction(world, scale))),
    ("burst", lambda world, scale: _ours(pressure.burst(world, scale))),
    ("verify", lambda world, scale: _ours(verifying.measure(world, scale))),
)
"""Each line and what measures it: figures by `<product>.<figure>`. The world is left as it was."""


def add_options(parser: ArgumentParser) -> None:
    """Add what can be chosen: lines, products, sizes."""
    group = parser.add_argument_group("cdc")
    group.add_argument("--cdc-lines", help="names with commas; all when left out")
    group.add_argument("--cdc-products", help="names with commas; all when left out")
    group.add_argument("--cdc-seconds", type=float, help="of a line with a steady load (60)")
    group.add_argument("--cdc-long-seconds", type=float, help="of the long line (300)")
    group.add_argument("--cdc-table-rows", type=int, help="of updated tables (1,000,000)")
    group.add_argument("--cdc-changes", type=int, help="that a catch-up has (1,000,000)")


def run(context: Context) -> Figures:
    """Measure the chosen part of the table once."""
    scale = Scale.of(context.options)
    world = context.once("world", lambda: running(context.folder, context.progress))
    figures: dict[str, float] = {}
    for line, measure in LINES:
        if scale.wants(line, OURS):
            context.progress(f"  {line}")
            found = measure(world, scale)
            context.progress("    " + ", ".join(f"{k} {v:,.3g}" for k, v in found.items()))
            figures |= {f"{line}.{name}": value for name, value in found.items()}
    return figures


def summary(result: Result) -> str:
    """Return every figure by line, then the goals, as Markdown."""
    medians = {name: figure.median for name, figure in result.figures.items()}
    rows = ["| line | product | figures |", "| --- | --- | --- |"]
    for line, product in dict.fromkeys(tuple(name.split(".")[:2]) for name in medians):
        prefix = f"{line}.{product}."
        shown = (f"{n[len(prefix) :]} {v:,.3g}" for n, v in medians.items() if n.startswith(prefix))
        rows.append(f"| {line} | {product} | {', '.join(shown)} |")
    rows += [
        "",
        "| goal | at least | aim | measured | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for goal in GOALS:
        value = medians.get(goal.figure)
        if value is not None:
            aim = "" if goal.aim is None else f"{goal.aim:,g}"
            bounds = f"{goal.at_least:,g} | {aim} | {value:,.3g}"
            rows.append(f"| {goal.what} | {bounds} | {verdict(goal, value)} |")
    return "\n".join(rows)


def _ours(figures: Figures) -> dict[str, float]:
    return {f"{OURS}.{name}": value for name, value in figures.items()}
