"""How fresh projections are while events come in, and what that costs: `log commit -> by name`.

One stack with every part. For each number of projections they are applied, events come for some
seconds that nobody measures, then for some that count; then they are dropped. All of one number
have one freshness, except `mixed`: ten of one second and forty of five.
"""

from __future__ import annotations

import json
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from apps.settings import load
from benchmarks.append import whole_stack
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.harness import Context, Figures, whole_numbers
from benchmarks.projections.freshness import freshness, rounds
from benchmarks.projections.queries import CATEGORY, TYPE, statements
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import DeployedCatalog
from projections.run.targets import live_target
from stack.workspace import Workspace

NAME = "projections"
CONDITIONS = (
    "events appended over HTTP in batches of 20, each answer after the commit is on disk; every "
    "event once in every projection, by its epoch; by name: the commit of the manifest; service, "
    "PostgreSQL, Kafka, Connect, the pipeline and the load share the cores"
)
_PARTS = ("pipeline", "service", "connect", "kafka", "registry")
_MIXED = "mixed"
_EVENT = {"item": 0, "shop": 0, "amount": 0.5}


def add_options(parser: ArgumentParser) -> None:
    """Add how many projections, and the load."""
    group = parser.add_argument_group("projections")
    group.add_argument(
        "--projections-counts", type=whole_numbers, default=(1, 5), help="of one freshness (1,5)"
    )
    group.add_argument(
        "--projections-freshness", default="100 milliseconds", help="of these (100 milliseconds)"
    )
    group.add_argument(
        "--projections-mixed", action="store_true", help="also ten at 1 s and forty at 5 s"
    )
    group.add_argument("--projections-rate", type=float, default=2_000.0, help="events/s (2,000)")
    group.add_argument("--projections-seconds", type=float, default=30.0, help="that count (30)")
    group.add_argument("--projections-warm-s", type=float, default=15.0, help="before them (15)")
    group.add_argument("--projections-ports", default="23300", help="the lowest port (23300)")


def run(context: Context) -> Figures:
    """Measure each number of projections on one stack."""
    stack = context.once("stack", lambda: loaded_stack(context))
    options, found = context.options, dict[str, float]()
    given: dict[str, Mapping[str, str]] = {
        str(count): statements(count, options.projections_freshness)
        for count in options.projections_counts
    }
    if options.projections_mixed:
        given[_MIXED] = statements(10, "1 second") | statements(40, "5 seconds", first=10)
    for title, declared in given.items():
        with stack.keeping(declared):
            stack.load(options.projections_rate, options.projections_warm_s)
            before = stack.cpu_s()
            load = stack.load(options.projections_rate, options.projections_seconds)
            stack.settled()
            spent = {part: now - before[part] for part, now in stack.cpu_s().items()}
            window = {"began": load["began"], "ended": load["ended"]}
            apps = stack.apps(declared)
            figures, own = freshness(stack.lake, stack.store, apps, **window)
            figures |= rounds(stack.lake, apps.values(), **window)
        context.progress(f"    {title}: " + ", ".join(f"{n} {v:,.0f}" for n, v in figures.items()))
        context.notes[f"{title}_{context.repetition}_p95_ms_by_projection"] = own
        figures["events_per_s"] = load["events_per_s"]
        figures |= {
            f"{part}_cpu_us_per_event": s * 1e6 / load["events"] for part, s in spent.items()
        }
        found |= {f"{title}_{name}": value for name, value in figures.items()}
    return found


@dataclass(slots=True)
class LoadedStack:
    """A whole stack in a workspace, that takes events."""

    workspace: Path
    service: tuple[str, str]

    @property
    def lake(self) -> Lake:
        """Its lake."""
        return Lake.at(load(self.workspace).lake)

    @property
    def store(self) -> str:
        """The name of its event store."""
        (found,) = {path.name for path in Path(self.lake.path("log/events")).iterdir()}
        return found

    def load(self, rate: float, seconds: float) -> dict[str, float]:
        """Append at a rate for some seconds."""
        words = [*self.service, str(rate), str(seconds)]
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.projections.load", *words],
            check=True,
            capture_output=True,
            text=True,
        )
        figures: dict[str, float] = json.loads(ended.stdout)
        return figures

    def apps(self, names: Iterable[str]) -> dict[str, str]:
        """Return the app ids of the live generations of projections, by name."""
        deployed = DeployedCatalog(self.lake, Tables()).deployment().projections
        return {n: live_target(self.lake, n, deployed[n][0].generation).app_id for n in names}

    def penstock(self, *words: str) -> None:
        """Run a command on its workspace."""
        program = Path(sys.executable).with_name("penstock")
        subprocess.run([program, *words, "-w", self.workspace], check=True, stdout=sys.stderr)

    def settled(self) -> None:
        """Wait until everything has arrived."""
        self.penstock("wait", "--caught-up", "--timeout", "300")

    def cpu_s(self) -> dict[str, float]:
        """Return the processor seconds of the parts since they started."""
        at = Workspace.at(self.workspace)
        found = {part: at.pid_of(part) for part in _PARTS}
        return {part: cpu_seconds([pid]) for part, pid in found.items() if pid is not None}

    @contextmanager
    def keeping(self, declared: Mapping[str, str]) -> Iterator[None]:
        """Have projections for the time of the block."""
        file = self.workspace / "bench.sql"
        file.write_text("\n".join(declared.values()))
        self.penstock("projection", "apply", str(file))
        try:
            self.settled()
            yield
        finally:
            for name in declared:
                self.penstock("projection", "drop", name, "--yes")


@contextmanager
def loaded_stack(context: Context) -> Iterator[LoadedStack]:
    """Run a stack that knows the events of the load."""
    with whole_stack(context.folder, context.options.projections_ports) as running:
        stack = LoadedStack(*running)
        stack.penstock("append", f"{CATEGORY}-0", TYPE, json.dumps(_EVENT))
        stack.settled()
        yield stack
