"""Penstock itself: over HTTP, in process, and the bare insert that latencies are compared with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.eventstore.cluster import Cluster, free_port
from benchmarks.eventstore.lines import Line, Scale
from benchmarks.eventstore.products import ROOT, drive, work_of
from benchmarks.harness import Figures
from kernel.errors import Unavailable

TEMPLATE = "penstock_seeded"
GROWN = "penstock_grown"
_READY_S = 300.0
_ORDER = "gapless total order = commit order, versions checked, event ids looked up; fsync"


class _OnPostgres:
    """A product with a database of its own, made anew from a template for each repetition."""

    name: str
    servers: Sequence[int] = ()

    def __init__(self, cluster: Cluster, template: str) -> None:
        self._cluster = cluster
        self._template = template
        self._dsn = ""

    def _database(self) -> str:
        # What grows by measuring is little beside what is there: one copy serves to the end.
        if self._template != GROWN or not self._dsn:
            self._dsn = self._cluster.create(self.name, template=self._template)
        return self._dsn


class PenstockHttp(_OnPostgres):
    """`python -m apps.service`, and clients with bare sockets."""

    def __init__(self, cluster: Cluster, template: str = TEMPLATE) -> None:
        super().__init__(cluster, template)
        self.name = "penstock_http" if template == TEMPLATE else "penstock_http_grown"
        self.guarantee = f"{_ORDER}; JSON over HTTP, clients with bare sockets"
        self._url = ""

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Run the service on a fresh database."""
        dsn = self._database()
        with tempfile.TemporaryDirectory(prefix="penstock-bench-service-") as folder:
            with service(dsn, Path(folder)) as (url, pid):
                self._url, self.servers = url, (pid,)
                yield
            self.servers = ()

    def takes(self, line: Line) -> bool:
        """Return true: it has all lines."""
        return True

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Load the service from a process of its own."""
        module = "deliver" if line.kind == "deliver" else "http_load"
        command = (sys.executable, "-m", f"benchmarks.eventstore.{module}")
        return drive(command, work_of(line, scale, self._url))


class PenstockInProcess(_OnPostgres):
    """The Python API without HTTP: encoding, queue and commit in one process with its callers."""

    def __init__(self, cluster: Cluster, template: str = TEMPLATE) -> None:
        super().__init__(cluster, template)
        self.name = "penstock_inprocess" if template == TEMPLATE else "penstock_inprocess_grown"
        self.guarantee = f"{_ORDER}; asyncio tasks in the store's own process"

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Make a fresh database."""
        self._database()
        yield

    def takes(self, line: Line) -> bool:
        """Return whether it is an append or a read."""
        return line.kind != "deliver"

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Run callers and store in one process."""
        command = (sys.executable, "-m", "benchmarks.eventstore.inprocess")
        return drive(command, work_of(line, scale, self._dsn))


class BareInsert(_OnPostgres):
    """One row inserted and committed by the same driver: the floor of any append's latency."""

    name = "bare_insert"
    guarantee = "none: one row into a table with one index, committed; fsync"

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "template0")

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Make the table."""
        self._database()
        self._cluster.execute(
            self.name,
            "CREATE TABLE bare (position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,"
            " data bytea NOT NULL)",
        )
        yield

    def takes(self, line: Line) -> bool:
        """Return whether one client appends one event."""
        return line.kind == "append" and line.clients == line.batch == 1

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Insert with psycopg."""
        command = (sys.executable, "-m", "benchmarks.eventstore.bare")
        return drive(command, work_of(line, scale, self._dsn))


@contextmanager
def service(
    dsn: str, workspace: Path, more: Mapping[str, str] | None = None, *, root: Path = ROOT
) -> Iterator[tuple[str, int]]:
    """Run the service of a checkout; yield its URL and process. `more` is for its environment."""
    port = free_port()
    environment = {
        **os.environ,
        "PENSTOCK_WORKSPACE": str(workspace),
        "PENSTOCK_POSTGRES_DSN": dsn,
        # Nobody answers there: known types need no registry.
        "PENSTOCK_REGISTRY_URL": "http://127.0.0.1:1",
        "PENSTOCK_SERVICE_PORT": str(port),
        "PENSTOCK_STORAGE_MIN_FREE_BYTES": "0",
        # Its peers ask for no token either.
        "PENSTOCK_SERVICE_AUTH": "none",
        **(more or {}),
    }
    log_file = workspace / "service.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "apps.service"],
            env=environment,
            cwd=root,
            stdout=log,
            stderr=log,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _READY_S
        while not _ready(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise Unavailable(f"the service does not start: {log_file.read_text()[-2_000:]}")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_READY_S)


def _ready(url: str) -> bool:
    try:
        with httpx.Client(verify=False, trust_env=False) as client:
            return client.get(f"{url}/health/ready").status_code == 200
    except httpx.TransportError:
        return False
