"""How long after its acknowledgement an event has reached each of a hundred subscribers.

The candidate reads the newest events once for all of them; for the baseline each reads the store by
itself (`service.feed_memory_bytes = 0`), which is how it was before there was such a memory. With
`--fan-out-before DIR` the baseline is the service of another checkout.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

from benchmarks.eventstore.cluster import running
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.eventstore.penstock import service
from benchmarks.eventstore.products import ROOT, drive
from benchmarks.eventstore.seed import data_text
from benchmarks.harness import Context, Figures
from benchmarks.peers.closed_loop import Work

NAME = "fan_out"
CONDITIONS = (
    "100 subscribers (SSE, all events) at 20 appends/s over HTTP; each append is answered after "
    "its commit is on disk (fsync on, synchronous_commit on); every subscriber gets every event, "
    "in order of positions; service, PostgreSQL, writers and subscribers share the cores"
)
SUBSCRIBERS, APPENDS_PER_S, WRITERS = 100, 20.0, 8
_TOLD = (
    *("p50_ms", "p99_ms", "sent_p99_ms", "answered_p50_ms", "answered_p99_ms"),
    *("edge_p50_ms", "edge_p99_ms", "last_p50_ms", "last_p99_ms"),
    *("not_seen", "client_cpu_us_per_event"),
)
_SEED = "import sys; from benchmarks.eventstore.seed import seed; seed(sys.argv[1])"
_DRIVER = (sys.executable, "-m", "benchmarks.eventstore.deliver")


def add_options(parser: ArgumentParser) -> None:
    """Add how long a repetition lasts."""
    group = parser.add_argument_group("fan_out")
    group.add_argument("--fan-out-seconds", type=float, default=20.0, help="per repetition (20)")
    group.add_argument("--fan-out-before", type=Path, help="checkout of the baseline")


def run(context: Context) -> Figures:
    """Deliver what is read once for all."""
    return _delivered(context, "shared", {})


def BASELINE(context: Context) -> Figures:
    """Deliver what each subscriber reads by itself, or as another checkout does."""
    before = context.options.fan_out_before
    if before is not None:
        return _delivered(context, "before", {}, before)
    return _delivered(context, "alone", {"PENSTOCK_SERVICE_FEED_MEMORY_BYTES": "0"})


def _delivered(context: Context, name: str, more: dict[str, str], root: Path = ROOT) -> Figures:
    cluster = context.once("postgres", lambda: running(context.folder))
    dsn = cluster.create(f"fan_out_{name}")
    # By the checkout's own code: a store of a later version is refused.
    subprocess.run((sys.executable, "-c", _SEED, dsn), cwd=root, check=True)
    workspace = Path(context.folder, f"{name}-{context.repetition}")
    workspace.mkdir()
    streams = {"PENSTOCK_SERVICE_MAX_SUBSCRIPTIONS": str(2 * SUBSCRIBERS)}
    with service(dsn, workspace, streams | more, root=root) as (url, pid):
        work = Work(
            line="deliver",
            address=url,
            data=data_text(),
            clients=WRITERS,
            rate=APPENDS_PER_S,
            subscribers=SUBSCRIBERS,
            seconds=context.options.fan_out_seconds,
        )
        before, postgres_before = cpu_seconds((pid,)), cpu_seconds((cluster.pid,))
        figures = drive(_DRIVER, work)
        spent, postgres = cpu_seconds((pid,)), cpu_seconds((cluster.pid,))
    deliveries = figures["all_events"]
    named = {name: figures[name] for name in _TOLD}
    return named | {
        "deliveries_per_s": figures["events_per_s"],
        "server_cpu_us_per_delivery": (spent - before) * 1e6 / deliveries,
        "postgres_cpu_us_per_delivery": (postgres - postgres_before) * 1e6 / deliveries,
    }
