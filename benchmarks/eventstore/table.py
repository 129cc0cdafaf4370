"""One repetition of the table: each line by each product, in turns, and how they compare.

Figures are named `<line>.<product>.<figure>`. All products are open during a repetition; on every
other one they take their turns backwards, so that a machine that slows down hits all alike.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.eventstore.cluster import Cluster, running
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.eventstore.lines import BATCH, EVENT_BYTES, LINES, Line, Scale
from benchmarks.eventstore.peers import Emmett, Eventsourcing, MessageDb, UmaDb, versions
from benchmarks.eventstore.penstock import (
    GROWN,
    TEMPLATE,
    BareInsert,
    PenstockHttp,
    PenstockInProcess,
)
from benchmarks.eventstore.products import Product
from benchmarks.eventstore.report import table
from benchmarks.eventstore.seed import preload, seed
from benchmarks.harness import Context, Figures, Result
from benchmarks.peers.install import default_cache, installed
from kernel.errors import InvalidRequest

NAME = "eventstore"
CONDITIONS = (
    f"events of {EVENT_BYTES} bytes of JSON, appends of 1 or {BATCH}; each answer after the commit "
    "is on disk (fsync on, synchronous_commit on), all stores but UmaDB on one PostgreSQL; servers "
    "and load share the cores; the order that each store guarantees is among the notes"
)
OURS = ("penstock_http", "penstock_inprocess")
(FILLING,) = (line for line in LINES if line.batch > 1)


def add_options(parser: ArgumentParser) -> None:
    """Add what can be chosen: time, part of the table, events that are there before."""
    group = parser.add_argument_group("eventstore")
    group.add_argument("--seconds", type=float, help="per line and product (5, quick: 1)")
    group.add_argument("--lines", help="names with commas; all when left out")
    group.add_argument("--products", help="names with commas; all when left out")
    group.add_argument(
        "--preload", type=int, default=0, help="measure beside a store of so many events (0: not)"
    )
    group.add_argument(
        "--peers-cache", type=Path, default=default_cache(), help="where peers are installed"
    )


def run(context: Context) -> Figures:
    """Measure the chosen part of the table once."""
    scale = Scale.of(context.options)
    cluster = context.once("postgres", lambda: running(context.folder))
    products = context.once("products", lambda: _products(context, cluster, scale))
    figures: dict[str, float] = {}
    with ExitStack() as stack:
        for product in products:
            stack.enter_context(product.fresh())
        order = products if context.repetition % 2 == 0 else products[::-1]
        _fill(order, scale)
        for line in scale.lines:
            for product in order:
                if product.takes(line):
                    measured = _measured(product, line, scale, cluster)
                    figures |= {f"{line.name}.{product.name}.{k}": v for k, v in measured.items()}
    return figures | compared(figures)


def summary(result: Result) -> str:
    """Return the table of a result."""
    return table({name: figure.median for name, figure in result.figures.items()}, result.notes)


def compared(figures: Figures) -> dict[str, float]:
    """Return how many times each peer's rate ours is, of the bare insert's latency, of empty."""
    found: dict[str, float] = {}
    for name, value in figures.items():
        line, product, figure = name.split(".")
        ours = next((our for our in OURS if product.startswith(our)), None)
        if ours is None:
            continue
        if figure == "events_per_s" and product == ours:
            for peer in ("emmett", "eventsourcing", "message_db", "umadb"):
                if theirs := figures.get(f"{line}.{peer}.events_per_s"):
                    found[f"{line}.{product}.times_{peer}"] = value / theirs
        if figure == "p50_ms" and (floor := figures.get(f"{line}.bare_insert.p50_ms")):
            found[f"{line}.{product}.p50_times_bare_insert"] = value / floor
        if product != ours and (empty := figures.get(f"{line}.{ours}.{figure}")):
            grown = value / empty
            if figure == "events_per_s":
                found[f"{line}.{product}.time_of_empty"] = 1 / grown if grown else 0.0
            elif figure in ("p50_ms", "p99_ms"):
                found[f"{line}.{product}.{figure}_of_empty"] = grown
    return found


def _fill(products: Sequence[Product], scale: Scale) -> None:
    """Append something where reads are chosen and no line before them does so."""
    if any(line.kind == "read" for line in scale.lines) and FILLING not in scale.lines:
        for product in products:
            if product.takes(FILLING):
                product.measure(FILLING, scale)


def _measured(product: Product, line: Line, scale: Scale, cluster: Cluster) -> Figures:
    servers, database = cpu_seconds(product.servers), cpu_seconds((cluster.pid,))
    figures = dict(product.measure(line, scale))
    events = figures.pop("all_events")
    if product.servers:
        spent = cpu_seconds(product.servers) - servers
        figures["server_cpu_us_per_event"] = spent * 1e6 / events
    figures["postgres_cpu_us_per_event"] = (cpu_seconds((cluster.pid,)) - database) * 1e6 / events
    return figures


@contextmanager
def _products(context: Context, cluster: Cluster, scale: Scale) -> Iterator[Sequence[Product]]:
    """Prepare the databases that others are copied from, install peers, choose."""
    wanted = scale.products
    seed(cluster.create(TEMPLATE))
    found: list[Product] = [PenstockHttp(cluster), PenstockInProcess(cluster), BareInsert(cluster)]
    if scale.preload:
        preload(cluster.create(GROWN, template=TEMPLATE), scale.preload, context.progress)
        found += [PenstockHttp(cluster, GROWN), PenstockInProcess(cluster, GROWN)]
    peers = None
    if wanted is None or wanted - {product.name for product in found}:
        peers = installed(context.options.peers_cache, context.progress)
        found += [
            Eventsourcing(cluster, peers),
            Emmett(cluster, peers),
            MessageDb(cluster, peers),
            UmaDb(peers),
        ]
    if unknown := (wanted or frozenset()) - {product.name for product in found}:
        raise InvalidRequest(
            f"no product named {', '.join(sorted(unknown))}",
            remedy=f"Choose from {', '.join(product.name for product in found)}",
        )
    chosen = [product for product in found if wanted is None or product.name in wanted]
    context.notes |= {
        "guarantees": {product.name: product.guarantee for product in chosen},
        "postgres": cluster.settings(),
        "peers": None if peers is None else versions(peers),
        "preloaded_events": scale.preload,
        "seconds_per_line": scale.seconds,
    }
    yield chosen
