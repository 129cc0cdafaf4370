"""What the service takes beside a busy pipeline, and with Connect and the pipeline stopped.

The pipeline is kept busy by the appends themselves: each event goes through Connect and Kafka into
its tables. The candidate runs both with `stack.background_niceness` as it is by default, the
baseline without.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from pathlib import Path

from benchmarks.append import CONNECTIONS, loaded, penstock, serving
from benchmarks.harness import Context, Figures

NAME = "precedence"
CONDITIONS = (
    "single appends over 64 connections, loader on the same cores, first beside the whole stack, "
    "then with only PostgreSQL, registry and service; each answer after the commit is on disk "
    "(fsync on, synchronous_commit on); gapless positions in commit order"
)
_SETTING = "PENSTOCK_STACK_BACKGROUND_NICENESS"
_WRITE_SIDE = "postgres,registry,service"


def add_options(parser: ArgumentParser) -> None:
    """Add where its stacks listen."""
    group = parser.add_argument_group("precedence")
    group.add_argument("--precedence-ports", default="22300", help="the lowest port (22300)")


def run(context: Context) -> Figures:
    """Load the stack as it is set up by default."""
    return _measured(context, "default", None)


def BASELINE(context: Context) -> Figures:
    """Load a stack all of whose parts have the same priority."""
    return _measured(context, "equal", "0")


def _measured(context: Context, name: str, niceness: str | None) -> Figures:
    # PostgreSQL runs as a user of its own, who must be able to pass these folders.
    context.folder.chmod(0o711)
    workspace = Path(context.folder, f"{name}-{context.repetition}")
    workspace.mkdir(mode=0o711)
    ports = ("--port-base", context.options.precedence_ports)
    environment = dict(os.environ)
    if niceness is not None:
        os.environ[_SETTING] = niceness
    try:
        with serving(workspace, *ports) as service:
            beside = loaded(service, connections=CONNECTIONS, events=1)
        with serving(workspace, *ports, "--only", _WRITE_SIDE) as service:
            alone = loaded(service, connections=CONNECTIONS, events=1)
    finally:
        os.environ.clear()
        os.environ.update(environment)
        penstock("reset", workspace, "--yes")
    return {
        "beside_appends_per_s": beside["requests_per_s"],
        "beside_p50_ms": beside["p50_ms"],
        "beside_p95_ms": beside["p95_ms"],
        "alone_appends_per_s": alone["requests_per_s"],
        "alone_p50_ms": alone["p50_ms"],
        "alone_p95_ms": alone["p95_ms"],
    }
