"""What a run of a projection costs behind a long history and behind a short one, by operator.

No stack: a lake that is written directly, and one process for each operator and each length of
history, which runs the projection as the pipeline does. Each run takes in 2,000 payments of
accounts all over, a twentieth of them of any time there was.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType

from benchmarks.harness import Context, Figures, Result, whole_numbers
from benchmarks.operators.queries import repeated, statements
from benchmarks.operators.world import LATE_PART, OperatorWorld
from lake.layout import Lake

NAME = "operators"
CONDITIONS = (
    "each fact once in each projection, by its epoch; each run is one guarded commit, handed to "
    "the file system without waiting for the disk; of each figure the median of the runs behind "
    "two for warming up"
)
ROWS = (1_000_000, 10_000_000)
PROMISED = 1.5
"""Behind ten times as much history a run may cost so many times as much, or `explain` says so."""


def add_options(parser: ArgumentParser) -> None:
    """Add how long histories are, and which operators are measured."""
    group = parser.add_argument_group("operators")
    group.add_argument(
        "--operators-rows",
        type=whole_numbers,
        default=ROWS,
        help="lengths of history, as 1000000,10000000",
    )
    group.add_argument(
        "--operators-of",
        nargs="+",
        choices=[*statements()],
        default=[*statements()],
        metavar="NAME",
        help="which ones; all when left out",
    )
    group.add_argument(
        "--operators-together",
        type=int,
        default=0,
        help="so many projections of these in one process, behind the last length (none)",
    )
    group.add_argument("--operators-changed", type=int, default=2_000, help="rows of a run (2,000)")
    group.add_argument(
        "--operators-late", type=float, default=LATE_PART, help="part of any time there was (0.05)"
    )
    group.add_argument("--operators-runs", type=int, default=5, help="that count (5)")


def run(context: Context) -> Figures:
    """Measure each operator behind each length of history."""
    options, found = context.options, dict[str, float]()
    lengths: tuple[int, ...] = options.operators_rows
    worlds = [context.once(f"lake-{rows}", partial(_filled, context, rows)) for rows in lengths]
    for name in options.operators_of:
        try:
            told = {world.rows: _trial(context, world, [name]) for world in worlds}
        except subprocess.CalledProcessError as error:
            # What the others cost stays worth knowing.
            context.notes[f"{name}_failed"] = str(error.stderr).strip().splitlines()[-1]
            context.progress(f"    {name}: failed: {context.notes[f'{name}_failed']}")
            continue
        for rows, figures in told.items():
            context.notes[f"{name}_cost"] = figures.pop("cost")
            found |= {f"{name}_{rows}_{n}": float(str(value)) for n, value in figures.items()}
        for what in ("cpu_s", "compute_cpu_s", "s", "memory_bytes"):
            short, long = (found[f"{name}_{rows}_{what}"] for rows in (lengths[0], lengths[-1]))
            found[f"{name}_{what}_ratio"] = long / short if short else 0.0
        context.progress(f"    {_line(name, lengths, found)}: {context.notes[f'{name}_cost']}")
    if options.operators_together:
        found |= _together(context, worlds[-1])
    return found


def _together(context: Context, world: OperatorWorld) -> Figures:
    """Measure many projections that one process keeps up to date."""
    options = context.options
    deployed = repeated(options.operators_of, options.operators_together)
    told = _trial(context, world, [*deployed], deployed)
    context.notes["together"] = [*deployed]
    context.notes["together_cost"] = told.pop("cost")
    title = f"together_{len(deployed)}_{world.rows}"
    found = {f"{title}_{name}": float(str(value)) for name, value in told.items()}
    memory, mapped = (found[f"{title}_{name}_bytes"] / 2**20 for name in ("memory", "mapped"))
    context.progress(
        f"    {len(deployed)} together: {found[f'{title}_s']:.1f} s a run, {memory:,.0f} MiB, "
        f"of which {mapped:,.0f} of files"
    )
    return found


def summary(result: Result) -> str:
    """Return which operators cost more behind the longer history than is promised."""
    suffix = "_compute_cpu_s_ratio"
    ratios = {
        name.removesuffix(suffix): figure.median
        for name, figure in result.figures.items()
        if name.endswith(suffix)
    }
    above = [
        f"  {name}: {ratio:.2f} times as much without its merge, by {result.notes[f'{name}_cost']}"
        for name, ratio in ratios.items()
        if ratio > PROMISED
    ]
    failed = [f"  {n}: {why}" for n, why in result.notes.items() if n.endswith("_failed")]
    many = f"  {len(above)} of {len(ratios)} operators cost more than {PROMISED} times as much"
    return "\n".join([many, *above, *failed])


@contextmanager
def _filled(context: Context, rows: int) -> Iterator[OperatorWorld]:
    world = OperatorWorld(Lake.at(context.folder / f"lake-{rows}"), rows)
    world.fill()
    yield world


def _trial(
    context: Context,
    world: OperatorWorld,
    names: Sequence[str],
    deployed: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, object]:
    """Run operators over a copy of a lake, in a process; some may have to be `deployed` there."""
    options, folder = context.options, context.folder / "trial"
    copied = world.copied(folder)
    if deployed:
        copied.deploy(deployed)
    asked = ",".join(names)
    words = (copied.lake.root, world.rows, asked, options.operators_changed, options.operators_runs)
    words = (*words, options.operators_late)
    try:
        told = subprocess.run(
            [
                *(sys.executable, "-m", "benchmarks.operators.trial"),
                *map(str, words),
                str(context.folder / "spark"),
            ],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    finally:
        shutil.rmtree(folder)
    figures: dict[str, object] = json.loads(told.splitlines()[-1])
    return figures


def _line(name: str, lengths: Sequence[int], found: Figures) -> str:
    spent = ", ".join(f"{found[f'{name}_{rows}_compute_cpu_s'] * 1e3:,.0f}" for rows in lengths)
    merge = ", ".join(f"{found[f'{name}_{rows}_merge_cpu_s'] * 1e3:,.0f}" for rows in lengths)
    took = ", ".join(f"{found[f'{name}_{rows}_s'] * 1e3:,.0f}" for rows in lengths)
    held = ", ".join(f"{found[f'{name}_{rows}_memory_bytes'] / 2**20:,.0f}" for rows in lengths)
    ratio = found[f"{name}_compute_cpu_s_ratio"]
    return (
        f"{name}: {spent} ms of CPU ({ratio:.2f} times) and {merge} for the merge, {took} ms in "
        f"all, {held} MiB"
    )
