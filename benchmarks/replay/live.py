"""How fresh live projections are while a build of one of them runs, and while none does.

On one stack, under one load: first the events that the build is to read, then a window without a
build and one in which `penstock replay apply` runs as often as it can. Options of the load are
those of the benchmark `projections`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Context, Figures
from benchmarks.projections import LoadedStack, loaded_stack
from benchmarks.projections.freshness import freshness
from benchmarks.projections.queries import statements

FILL_PER_S = 4_000.0
_FIGURES = ("events", "not_seen", "name_p50_ms", "name_p95_ms", "source_p95_ms")


@dataclass(slots=True)
class _Builds:
    """Builds of one projection, one after the other; seconds that one ran."""

    done: int = 0
    seconds: float = 0.0


def measured(context: Context, rows: int) -> Iterator[tuple[str, Figures]]:
    """Yield what the window without a build gave, and what the one beside builds did."""
    stack = context.once("stack", lambda: loaded_stack(context))
    options = context.options
    declared = statements(5, options.projections_freshness)
    with stack.keeping(declared):
        stack.load(FILL_PER_S, rows / FILL_PER_S)
        stack.settled()
        stack.load(options.projections_rate, options.projections_warm_s)
        alone = _window(context, stack, declared)
        yield "alone", alone
        with _building(stack, next(iter(declared))) as builds:
            beside = _window(context, stack, declared)
        times = {
            f"{name}_of_alone": beside[name] / alone[name]
            for name in ("name_p50_ms", "name_p95_ms", "source_p95_ms")
        }
        told = {"builds": float(builds.done), "build_s": builds.seconds}
        yield "beside", {**beside, **times, **told}


def _window(context: Context, stack: LoadedStack, declared: Mapping[str, str]) -> dict[str, float]:
    """Append for some seconds, and return how long events took until readers by name saw them."""
    options = context.options
    load = stack.load(options.projections_rate, options.projections_seconds)
    stack.settled()
    within = {"began": load["began"], "ended": load["ended"]}
    figures, _ = freshness(stack.lake, stack.store, stack.apps(declared), **within)
    return {
        **{name: figures[name] for name in _FIGURES},
        "events_per_s": load["events_per_s"],
        "machine_load": os.getloadavg()[0],
    }


@contextmanager
def _building(stack: LoadedStack, name: str) -> Iterator[_Builds]:
    """Build a projection again and again for the time of the block; the last one is let end."""
    builds, over = _Builds(), threading.Event()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            while not over.is_set():
                began = time.monotonic()
                _replay(stack, "apply", name)
                builds.seconds += time.monotonic() - began
                builds.done += 1
                _replay(stack, "cancel", name)
        except BaseException as error:
            failures.append(error)

    builder = threading.Thread(target=run)
    builder.start()
    try:
        yield builds
    finally:
        over.set()
        builder.join()
    if failures:
        raise failures[0]


def _replay(stack: LoadedStack, command: str, name: str) -> None:
    program = Path(sys.executable).with_name("penstock")
    words = [program, "replay", command, name, "-w", stack.workspace]
    subprocess.run(words, check=True, stdout=sys.stderr)
