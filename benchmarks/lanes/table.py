"""One repetition: the quiet lane before, and beside each trouble of another lane.

Figures are named `<trouble>.<figure>`: `before_p95_s`, `during_p95_s`, and what the one is of the
other; of a transaction also `making_p95_s`, `coming_p95_s` and `folding_p95_s`. `idle` has the
pipeline's processors with the quiet lane alone and beside 20 idle ones.
"""

from __future__ import annotations

import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.cdc.updates import Memory, await_rows
from benchmarks.cdc.world import World, running
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.harness import Context, Figures, Result
from benchmarks.lanes import quiet_lane, troubles
from benchmarks.lanes.quiet_lane import QuietLane

NAME = "lanes"
CONDITIONS = (
    "a lane of 5 records a second, from sending a record to the manifest's row that shows it, "
    "exactly once; PostgreSQL, Kafka, Connect, registry, the pipeline and the load share the cores"
)
TROUBLES = ("idle", "transaction", "backlog", "undecodable", "unknown", "ddl", "lost")
IDLE = 20
_JSON = "CREATE SOURCE {0} (n BIGINT) WITH (topic = '{0}', format = 'json');\n"
_QUIET = "CREATE SOURCE {0} (at DOUBLE) WITH (topic = '{0}', format = 'json');\n"
_AVRO = "CREATE SOURCE {0} WITH (topic = '{0}', format = 'avro');\n"
_CAPTURED = {"transaction": troubles.BIG, "ddl": troubles.CHANGING}
_TOPICS = {
    "backlog": (troubles.BACKLOG, _JSON),
    "undecodable": (troubles.GARBAGE, _JSON),
    "unknown": (troubles.UNKNOWN, _AVRO),
    "lost": (troubles.LOST, _JSON),
}
_WARM_S, _LATER_S, _SEEN_S = 10.0, 2.0, 120.0


def add_options(parser: ArgumentParser) -> None:
    """Add which troubles, and how large they are."""
    group = parser.add_argument_group("lanes")
    group.add_argument("--lanes-troubles", help=f"which of {','.join(TROUBLES)}; all if left out")
    group.add_argument("--lanes-rows", type=int, help="of the transaction (1,000,000)")
    group.add_argument("--lanes-records", type=int, help="of the backlog (500,000)")
    group.add_argument("--lanes-ddl-rows", type=int, help="of the table with DDL (200,000)")
    group.add_argument("--lanes-seconds", type=float, help="of a time that is measured (30)")
    group.add_argument("--lanes-ports", type=int, default=25_400, help="the lowest port (25400)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is measured, how large it is, and for how long. A fifth of it with `--quick`."""

    troubles: Collection[str]
    rows: int
    records: int
    ddl_rows: int
    seconds: float

    @classmethod
    def of(cls, context: Context) -> Sizes:
        """Read the options of the command line."""
        given = context.options
        chosen, part = given.lanes_troubles, 5 if given.quick else 1
        return cls(
            troubles=tuple(chosen.split(",")) if chosen else TROUBLES,
            rows=given.lanes_rows or 1_000_000 // part,
            records=given.lanes_records or 500_000 // part,
            ddl_rows=given.lanes_ddl_rows or 200_000 // part,
            seconds=given.lanes_seconds or 30.0 / (3 if part > 1 else 1),
        )


def run(context: Context) -> Figures:
    """Measure the chosen troubles once, on a lake of their own."""
    sizes, ports = Sizes.of(context), context.options.lanes_ports
    world = context.once("world", lambda: running(context.folder, context.progress, ports))
    lane = QuietLane(world.lake, world.settings.required("kafka.bootstrap"))
    lanes = _Measured(world, lane, sizes, context.progress)
    figures = lanes.all()
    world.forget()
    return figures


def summary(result: Result) -> str:
    """Return a line for each trouble, as Markdown."""
    medians = {name: figure.median for name, figure in result.figures.items()}
    rows = ["| trouble | before p50 · p95 | during p50 · p95 | ratio of p95 |"]
    rows.append("| --- | --- | --- | --- |")
    for trouble in dict.fromkeys(name.partition(".")[0] for name in medians):
        own = {n.partition(".")[2]: v for n, v in medians.items() if n.startswith(f"{trouble}.")}
        if "ratio_p95" in own:
            before = f"{own['before_p50_s']:.2f} · {own['before_p95_s']:.2f} s"
            during = f"{own['during_p50_s']:.2f} · {own['during_p95_s']:.2f} s"
            rows.append(f"| {trouble} | {before} | {during} | {own['ratio_p95']:.2f} |")
    return "\n".join(rows)


class _Measured:
    """The troubles of one repetition, one after the other, on one pipeline; the last on a second.

    One that leaves its lane as it is comes behind those that do not.
    """

    def __init__(
        self, world: World, lane: QuietLane, sizes: Sizes, progress: Callable[[str], None]
    ) -> None:
        self._world, self._lane, self._sizes, self._progress = world, lane, sizes, progress

    def all(self) -> dict[str, float]:
        """Run the pipeline, and measure what was chosen."""
        wanted = self._sizes.troubles
        self._begin()
        figures: dict[str, float] = {}
        with self._talked() as process:
            if "idle" in wanted:
                figures |= _named("idle", self._idle(process))
            for name, trouble in self._others().items():
                if name in wanted:
                    figures |= _named(name, self._beside(name, trouble, process))
            if "lost" in wanted:
                troubles.read_one(self._world, troubles.LOST)
                before = self._calm()
        if "lost" in wanted:
            troubles.lose(self._world, 1_000)
            with self._talked() as process:
                pause = partial(_pause, self._sizes.seconds)
                figures |= _named("lost", self._beside("lost", pause, process, before))
        return figures

    def _others(self) -> Mapping[str, Callable[[], dict[str, float]]]:
        world, sizes = self._world, self._sizes
        return {
            "transaction": partial(troubles.transaction, world, sizes.rows),
            "backlog": partial(troubles.backlog, world, sizes.records),
            "ddl": partial(troubles.ddl, world, sizes.ddl_rows, sizes.seconds),
            "undecodable": partial(troubles.undecodable, world, sizes.seconds),
            "unknown": partial(troubles.unknown_schema, world, sizes.seconds),
        }

    def _begin(self) -> None:
        """Make the lanes: topics that are declared, and tables that are captured."""
        wanted, sizes = self._sizes.troubles, self._sizes
        topics = {name: how for trouble, (name, how) in _TOPICS.items() if trouble in wanted}
        self._declare({quiet_lane.NAME: _QUIET, **topics})
        rows = {troubles.BIG: sizes.rows, troubles.CHANGING: sizes.ddl_rows}
        tables = [table for trouble, table in _CAPTURED.items() if trouble in wanted]
        for table in tables:
            self._world.make_tables([table], rows[table])
        if not tables:
            return
        self._world.capture(tables)
        with self._world.pipeline():
            for table in tables:
                await_rows(self._world, [f"public.{table}"], rows[table])

    def _declare(self, declared: Mapping[str, str]) -> None:
        settings = self._world.settings
        admin = AdminClient({"bootstrap.servers": settings.required("kafka.bootstrap")})
        missing = declared.keys() - admin.list_topics(timeout=30).topics.keys()
        new = [NewTopic(name, 1, 1) for name in missing]
        for made in admin.create_topics(new).values() if new else ():
            made.result(60)
        file = settings.workspace / "lanes.sql"
        file.write_text("".join(how.format(name) for name, how in declared.items()))
        program = Path(sys.executable).with_name("penstock")
        words = [program, "projection", "apply", str(file), "-w", str(settings.workspace)]
        subprocess.run(words, check=True, stdout=sys.stderr)

    @contextmanager
    def _talked(self) -> Iterator[psutil.Process]:
        """Run the pipeline beside a quiet lane that is warm."""
        with self._world.pipeline() as process, self._lane.talking():
            time.sleep(_WARM_S)
            self._lane.until_seen(_SEEN_S)
            yield process

    def _calm(self) -> dict[str, float]:
        """Return the lag of the quiet lane while nothing else happens."""
        began = time.time()
        time.sleep(self._sizes.seconds)
        return self._lag(began)

    def _lag(self, began: float) -> dict[str, float]:
        ended = time.time()
        self._lane.until_seen(_SEEN_S)
        return self._lane.lag(began, ended)

    def _beside(
        self,
        name: str,
        trouble: Callable[[], dict[str, float]],
        process: psutil.Process,
        before: dict[str, float] | None = None,
    ) -> dict[str, float]:
        self._progress(f"  {name}")
        before, memory = before or self._calm(), Memory(process)
        began = time.time()
        own = trouble()
        time.sleep(_LATER_S)
        during = self._lag(began)
        figures = {f"before_{what}": value for what, value in before.items()}
        figures |= {f"during_{what}": value for what, value in during.items()}
        figures |= {
            f"ratio_{share}": during[f"{share}_s"] / max(before[f"{share}_s"], 1e-3)
            for share in ("p50", "p95")
        }
        figures |= self._parts(began, own)
        figures |= own | {"memory_mb_max": memory.end()["memory_mb_max"]}
        self._progress("    " + ", ".join(f"{k} {v:,.2f}" for k, v in figures.items()))
        return figures

    def _parts(self, began: float, own: dict[str, float]) -> dict[str, float]:
        """Return the lag while a transaction is made, comes, is folded; take the moments out."""
        figures: dict[str, float] = {}
        for part, at in (("making", "made_at"), ("coming", "logged_at"), ("folding", "shown_at")):
            if at in own:
                ended = own.pop(at)
                lag = self._lane.lag(began, ended)
                figures |= {f"{part}_{what}": value for what, value in lag.items()}
                began = ended
        return figures

    def _idle(self, process: psutil.Process) -> dict[str, float]:
        """Return the processors that the pipeline takes, without and with idle lanes."""
        alone = self._cores(process)
        before = self._calm()
        self._declare({f"idle_{n:02}": _JSON for n in range(IDLE)})
        time.sleep(_WARM_S)
        self._lane.until_seen(_SEEN_S)
        beside, during = self._cores(process), self._calm()
        figures = {"lanes": float(IDLE), "alone_cores": alone, "beside_cores": beside}
        figures |= {f"before_{what}": value for what, value in before.items()}
        figures |= {f"during_{what}": value for what, value in during.items()}
        figures["ratio_p50"] = during["p50_s"] / max(before["p50_s"], 1e-3)
        figures["ratio_p95"] = during["p95_s"] / max(before["p95_s"], 1e-3)
        self._progress(f"  idle: {alone:.3f} cores alone, {beside:.3f} beside {IDLE} idle lanes")
        return figures

    def _cores(self, process: psutil.Process) -> float:
        began, spent = time.monotonic(), cpu_seconds((process.pid,))
        time.sleep(self._sizes.seconds)
        return (cpu_seconds((process.pid,)) - spent) / (time.monotonic() - began)


def _pause(seconds: float) -> dict[str, float]:
    time.sleep(seconds)
    return {}


def _named(trouble: str, figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{trouble}.{name}": value for name, value in figures.items()}
