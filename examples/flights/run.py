"""The demo's story, step by step, through the commands and calls that users have.

    stack up -> capture, schemas, projections -> post the flights; meanwhile rows change and the
    pipeline dies -> every count and table checked -> the very late few -> rebuild, replay, figures

Everything that must hold is a `Check`; the run is good when all hold. Whatever happens, nothing is
left running unless it was asked for.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from apps import settings
from apps.cli.demo_options import DemoOptions, LakePlace
from apps.cli.stack import APPLICATIONS, explained, stack_options
from examples.flights import closing, freshness, posting, source_database, verification, workspace
from examples.flights.amendments import script
from examples.flights.commands import Penstock
from examples.flights.narration import Narration
from examples.flights.oracle import KEYS
from examples.flights.posting_order import FlightRiver
from examples.flights.scene import Scene
from kernel.errors import InvalidRequest
from stack import control, object_store
from stack.logs import tail
from stack.plan import LOCAL_PARTS
from stack.workspace import Workspace

_STORE_PORT = 7
"""Behind the ports of the stack's seven parts."""
_LAST_LINES = 8
_LAST_CHARACTERS = 400


def run(options: DemoOptions, narration: Narration) -> bool:
    """Run the whole demo. Return whether everything held.

    Raises what a step raises; the stack is stopped then too, even with `keep`.
    """
    with _signals_stop():
        folder = workspace.prepare(options.folder)
        with _lake(options, narration):
            return _story(options, narration, folder)


def _story(options: DemoOptions, narration: Narration, folder: Path) -> bool:
    """Run the steps; the stack is stopped whatever happens, unless it is to be kept."""
    try:
        _start(options, narration, folder)
        scene = _open(options, narration, folder)
        _declare(scene)
        posting.post_flights(scene)
        verification.check_hops(scene)
        verification.check_mirrors(scene)
        verification.check_projections(scene)
        verification.check_late_few(scene)
        _replay(scene)
        closing.figures(narration, scene.lake, _fresh(scene), _throughput(scene))
    finally:
        _stop(options, narration, folder)
    closing.verdict(narration, folder, scene.lake, kept=options.keep)
    return not narration.failures


@contextmanager
def _lake(options: DemoOptions, narration: Narration) -> Iterator[None]:
    """Have the place where the tables are to lie: a folder of the workspace, or a store of ours."""
    if options.lake is not LakePlace.S3:
        yield
        return
    if options.keep:
        raise InvalidRequest(
            "--keep needs a lake that stays, and that of --lake s3 goes with the demo",
            remedy="penstock demo --keep",
        )
    narration.step("Starting an S3 store")
    port = options.port_base + _STORE_PORT
    store = object_store.start(port, "penstock")
    place = {**object_store.environment(port), "PENSTOCK_LAKE_PATH": f"s3://{store.bucket}/demo"}
    before = {name: os.environ.get(name) for name in place}
    os.environ.update(place)
    narration.say(f"{store.url}, tables at {place['PENSTOCK_LAKE_PATH']}")
    try:
        yield
    finally:
        store.stop()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _start(options: DemoOptions, narration: Narration, folder: Path) -> None:
    narration.step("Starting PostgreSQL, Kafka, Connect with Debezium, registry, service, Spark")
    narration.command("penstock up")
    chosen = stack_options(
        settings.load(folder),
        parts=(*LOCAL_PARTS, *APPLICATIONS),
        port_base=options.port_base,
        offline=options.offline,
    )
    with explained(folder):
        control.up(folder, chosen, narration.say)


def _open(options: DemoOptions, narration: Narration, folder: Path) -> Scene:
    narration.step(f"Filling an ordinary database, {source_database.NAME}, and reading the flights")
    found = settings.load(folder)
    scene = Scene(
        options=options,
        narration=narration,
        folder=folder,
        found=found,
        river=FlightRiver(options.flights, seed=options.seed),
        script=script(),
        penstock=Penstock(folder, narration),
        source_dsn=source_database.create(found.required("postgres.dsn")),
    )
    counts = source_database.row_counts(scene.source_dsn)
    narration.say(", ".join(f"{name} {rows:,}" for name, rows in counts.items()) + " rows")
    kinds = ", ".join(f"{kind} {n:,}" for kind, n in scene.river.counts.items())
    narration.say(f"{scene.river.flights:,} flights are {scene.events:,} events: {kinds}")
    return scene


def _declare(scene: Scene) -> None:
    scene.narration.step("Capturing the database, declaring schemas and projections")
    projections = [str(file) for file in sorted((scene.folder / "projections").glob("*.sql"))]
    # Before the first row comes: which column holds a table's event time is settled as it arrives.
    scene.penstock("projection", "apply", *(file for file in projections if "sources" in file))
    tables = ",".join(f"public.{name}" for name in source_database.TABLES)
    scene.penstock(
        "source", "add", source_database.NAME, "--dsn", scene.source_dsn, "--tables", tables
    )
    for file in sorted((scene.folder / "schemas").glob("*.avsc")):
        scene.penstock("schema", "add", file.stem, str(file))
    scene.penstock("projection", "apply", *projections)


def _replay(scene: Scene) -> None:
    scene.narration.step("Every projection built anew from the log, beside the live one")
    closing.rebuild(scene.penstock, scene.narration)
    scene.narration.step("A replay that brings in what came too late")
    closing.include_late(scene.penstock, scene.narration, scene.lake, scene.oracle)


def _fresh(scene: Scene) -> list[freshness.Freshness]:
    after, up_to = scene.tail
    store = scene.catch_up().store
    return freshness.measure(scene.lake, store, after=after, up_to=up_to, projections=tuple(KEYS))


def _throughput(scene: Scene) -> dict[str, float]:
    return {
        "events": scene.posted_in_bulk,
        "posting_s": scene.posting_s,
        "through_s": scene.through_s,
    }


def _stop(options: DemoOptions, narration: Narration, folder: Path) -> None:
    error = sys.exc_info()[1]
    if options.keep and error is None:
        return
    if isinstance(error, Exception):
        # Not of Ctrl-C and signals: who wanted the end knows its reason.
        _last_words(narration, folder)
    narration.step("Stopping everything")
    with _signals_wait():
        control.down(folder)


def _last_words(narration: Narration, folder: Path) -> None:
    """Say what the parts logged last: their logs go with the next demo."""
    logs = sorted(Workspace.at(folder).logs.glob("*.log"))
    for part, line in tail(logs, lines=_LAST_LINES):
        narration.say(f"{part}: {line[:_LAST_CHARACTERS]}")


@contextmanager
def _signals_stop() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, as Ctrl-C is one: then everything is stopped."""

    def stop(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _handled({signal.SIGTERM: stop, signal.SIGHUP: stop}):
        yield


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Let a second Ctrl-C not leave half a stack behind."""
    ignored = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with _handled(dict.fromkeys(ignored, signal.SIG_IGN)):
        yield


@contextmanager
def _handled(handlers: dict[signal.Signals, signal._HANDLER]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
