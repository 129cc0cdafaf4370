"""What the HTTP service takes: single appends over 64 connections, and appends of 100 events.

The loader is a process of its own on the same machine, with bare sockets: a full HTTP client would
measure itself. It shares the cores with service and database, as the figures' conditions say.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from apps.settings import load
from benchmarks.harness import Context, Figures

NAME = "append"
CONDITIONS = (
    "HTTP to one service process, loader on the same cores; each answer after the commit is on "
    "disk (fsync on, synchronous_commit on); gapless positions in commit order over the whole "
    "store, versions checked, event ids looked up for retries"
)
CONNECTIONS, BATCH_CONNECTIONS, BATCH_EVENTS, SECONDS = 64, 16, 100, 10.0
PARTS = "postgres,registry,service"
PORT_BASE = "22100"
# A machine that is busy with other work starts slowly; that is no part of what is measured.
_START_S, _FIRST_S = "1800", 120.0
EVENT = {"type": "placed", "data": {"total": 12.5, "customer": "c-123", "lines": 3, "note": "x"}}


def run(context: Context) -> Figures:
    """Append for ten seconds in each way; return rates and latencies."""
    service = context.once("service", lambda: _service(context.folder))
    single = loaded(service, connections=CONNECTIONS, events=1)
    alone = loaded(service, connections=1, events=1)
    batch = loaded(service, connections=BATCH_CONNECTIONS, events=BATCH_EVENTS)
    return {
        "single_appends_per_s": single["requests_per_s"],
        "single_p50_ms": single["p50_ms"],
        "single_p95_ms": single["p95_ms"],
        "one_connection_appends_per_s": alone["requests_per_s"],
        "one_connection_p50_ms": alone["p50_ms"],
        "batch_events_per_s": batch["requests_per_s"] * BATCH_EVENTS,
        "batch_p50_ms": batch["p50_ms"],
        "batch_p95_ms": batch["p95_ms"],
    }


@contextmanager
def _service(folder: Path) -> Iterator[tuple[str, str]]:
    workspace = folder / "append"
    # PostgreSQL runs as a user of its own, who must be able to pass these folders.
    folder.chmod(0o711)
    workspace.mkdir(mode=0o711)
    with serving(workspace, "--only", PARTS, "--port-base", PORT_BASE) as service:
        yield service


@contextmanager
def serving(workspace: Path, *options: str) -> Iterator[tuple[str, str]]:
    """Run a stack; yield the service's URL and token once it has taken an event."""
    try:
        penstock("up", workspace, "--timeout", _START_S, *options)
        found = load(workspace)
        url, token = found.required("service.url"), found.text("service.token")
        answer = httpx.post(
            f"{url}/v1/streams/order-warm",
            json={"events": [EVENT]},
            headers={"authorization": f"Bearer {token}"},
            verify=False,
            timeout=_FIRST_S,
        )
        answer.raise_for_status()
        yield url, token
    finally:
        penstock("down", workspace)


@contextmanager
def whole_stack(folder: Path, ports: str) -> Iterator[tuple[Path, tuple[str, str]]]:
    """Run a stack with every part, from a lowest port on; yield its workspace, URL and token."""
    # PostgreSQL runs as a user of its own, who must be able to pass these folders.
    folder.chmod(0o711)
    workspace = folder / "stack"
    workspace.mkdir(mode=0o711)
    try:
        with serving(workspace, "--port-base", ports) as service:
            yield workspace, service
    finally:
        penstock("reset", workspace, "--yes")


def penstock(command: str, workspace: Path, *options: str) -> None:
    """Run a command on a workspace."""
    program = Path(sys.executable).with_name("penstock")
    subprocess.run(
        [program, command, "--workspace", workspace, *options], check=True, stdout=sys.stderr
    )


def loaded(
    service: tuple[str, str], *, connections: int, events: int, seconds: float = SECONDS
) -> dict[str, float]:
    """Append from so many connections for some seconds; return rates and latencies."""
    body = json.dumps({"events": [EVENT] * events})
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.loader", *service, str(connections), str(seconds), body],
        check=True,
        capture_output=True,
        text=True,
    )
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures
