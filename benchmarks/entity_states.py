"""How long the state of an entity at a time takes over HTTP, in streams of 1,000 events.

The candidate starts from the snapshot before that time, of which a stream has ten here, as one has
whose entity was asked for now and then while it grew; for the baseline nothing is kept
(`snapshot_every = 0`), and each state is folded from the first event. With
`--entity-states-before DIR` the baseline is the service of another checkout.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import quote, urlsplit

from benchmarks.eventstore.cluster import running
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.eventstore.penstock import service
from benchmarks.eventstore.products import ROOT
from benchmarks.eventstore.seed import CATEGORY, PRELOAD_BEGINS, know_type, preload
from benchmarks.harness import Context, Figures

NAME = "entity_states"
CONDITIONS = (
    "GET /v1/entities/order/N?at=… and ?version=…, entity and event at random over keep-alive "
    "connections (one, then four), the next request when the answer is there; each state is the "
    "fold of exactly the events that were recorded by then, and is checked for their number; "
    "streams of 1,000 events; service, PostgreSQL, deciders and readers share the cores"
)
EVENTS, EVERY, CONNECTIONS = 1_000, 100, 4
# By the checkout's own code: a store of a later version is refused.
_MIGRATE = (
    "import asyncio, sys; from eventstore.postgres.migrate import migrate; "
    "asyncio.run(migrate(sys.argv[1]))"
)
_DECIDER = """
from dataclasses import dataclass, replace

from eventstore.deciders import Command, Decider, Event


@dataclass(frozen=True)
class Order:
    placed: int = 0
    total: float = 0.0
    customer: str = ""


def decide(command: Command, state: Order) -> list[Event]:
    return []


def evolve(state: Order, event: Event) -> Order:
    total = state.total + event.data["total"]
    return replace(state, placed=state.placed + 1, total=total, customer=event.data["customer"])


order = Decider(
    category="order",
    version=1,
    commands={"look": None},
    initial_state=Order(),
    decide=decide,
    evolve=evolve,
    snapshot_every=%d,
)
"""


def add_options(parser: ArgumentParser) -> None:
    """Add how many entities there are, and how long they are asked for."""
    group = parser.add_argument_group("entity_states")
    group.add_argument("--entity-states-streams", type=int, default=20, help="entities (20)")
    group.add_argument("--entity-states-seconds", type=float, default=8.0, help="of each load (8)")
    group.add_argument("--entity-states-before", type=Path, help="checkout of the baseline")


def run(context: Context) -> Figures:
    """Ask for states that have snapshots."""
    return _asked(context, "kept", EVERY, ROOT)


def BASELINE(context: Context) -> Figures:
    """Ask for states that are folded from their first event, or of another checkout."""
    before = context.options.entity_states_before
    return _asked(context, "before", 0 if before is None else EVERY, before or ROOT)


@dataclass(frozen=True, slots=True, kw_only=True)
class _World:
    """A service whose streams all have the same number of events."""

    url: str
    streams: int

    def ask(self, seconds: float, by: str) -> list[float]:
        """Ask for one state after the other; return how many milliseconds each took."""
        dice, found = random.Random(), []
        until = time.perf_counter() + seconds
        with closing(self._connection()) as connection:
            while (began := time.perf_counter()) < until:
                self._look(connection, dice.randrange(self.streams), dice.randrange(EVENTS), by)
                found.append((time.perf_counter() - began) * 1000)
        return found

    def grow(self) -> None:
        """Ask for all entities as they were after every hundredth event, as their callers did."""
        with closing(self._connection()) as connection:
            for stream in range(self.streams):
                for version in range(EVERY - 1, EVENTS, EVERY):
                    self._look(connection, stream, version, "version")

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port)

    def _look(
        self, connection: http.client.HTTPConnection, stream: int, version: int, by: str
    ) -> None:
        moment = PRELOAD_BEGINS + timedelta(milliseconds=version * self.streams + stream)
        value = str(version) if by == "version" else quote(moment.isoformat())
        connection.request("GET", f"/v1/entities/{CATEGORY}/{stream}?{by}={value}")
        answer = json.loads(connection.getresponse().read())
        if answer.get("version") != version or answer["state"]["placed"] != version + 1:
            raise SystemExit(f"the state of {stream} after {version} is not {answer}")


def _asked(context: Context, name: str, every: int, root: Path) -> Figures:
    options = context.options
    cluster = context.once("postgres", lambda: running(context.folder))
    dsn = cluster.create(f"entity_states_{name}")
    streams = options.entity_states_streams
    subprocess.run((sys.executable, "-c", _MIGRATE, dsn), cwd=root, check=True)
    know_type(dsn)
    preload(dsn, streams * EVENTS, lambda line: None, streams=streams)
    workspace = Path(context.folder, f"{name}-{context.repetition}")
    (workspace / "deciders").mkdir(parents=True)
    (workspace / "deciders" / "order.py").write_text(_DECIDER % every, encoding="utf-8")
    with service(dsn, workspace, root=root) as (url, pid):
        world = _World(url=url, streams=streams)
        world.grow()
        before = cpu_seconds((pid,)), cpu_seconds((cluster.pid,))
        loads = dict(_loads(world, options.entity_states_seconds))
        spent = cpu_seconds((pid,)) - before[0], cpu_seconds((cluster.pid,)) - before[1]
    asked = sum(map(len, loads.values()))
    figures = {
        f"{load}_p{percent}_ms": statistics.quantiles(found, n=100)[percent - 1]
        for load, found in loads.items()
        for percent in (50, 99)
    }
    return figures | {
        "many_per_s": len(loads["many"]) / options.entity_states_seconds,
        "server_cpu_us_per_state": spent[0] * 1e6 / asked,
        "postgres_cpu_us_per_state": spent[1] * 1e6 / asked,
    }


def _loads(world: _World, seconds: float) -> Iterator[tuple[str, list[float]]]:
    yield "at", world.ask(seconds, "at")
    yield "version", world.ask(seconds, "version")
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        readers = [pool.submit(world.ask, seconds, "at") for _ in range(CONNECTIONS)]
        yield "many", [took for reader in readers for took in reader.result()]
