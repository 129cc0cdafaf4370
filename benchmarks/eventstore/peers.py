"""The other stores: how each is opened, and which of the lines it has."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import create_connection

from benchmarks.eventstore.cluster import Cluster, free_port
from benchmarks.eventstore.lines import EVENT_BYTES, Line, Scale
from benchmarks.eventstore.products import drive, work_of
from benchmarks.harness import Figures
from benchmarks.peers.closed_loop import STREAMS, percentile
from benchmarks.peers.install import HERE, Installed
from kernel.errors import Unavailable

_START_S = 30.0
_CATEGORIES = 16
_SQL_FILES = (
    *("roles/message-store", "schema/message-store", "tables/messages", "types/message"),
    *("functions/message-store-version", "functions/hash-64", "functions/acquire-lock"),
    *("functions/category", "functions/is-category", "functions/id", "functions/cardinal-id"),
    *("functions/stream-version", "functions/write-message", "functions/get-stream-messages"),
    *("functions/get-category-messages", "functions/get-last-stream-message"),
    *("indexes/messages-id", "indexes/messages-stream", "indexes/messages-category"),
)


class Eventsourcing:
    """`eventsourcing` in its default mode."""

    name = "eventsourcing"
    guarantee = (
        "total order = commit order with gaps (table lock), versions unique; fsync; "
        "threads in one Python process, ready-made bytes"
    )
    servers: Sequence[int] = ()

    def __init__(self, cluster: Cluster, peers: Installed) -> None:
        self._cluster, self._peers = cluster, peers

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Make a fresh database; the recorder makes its tables."""
        self._cluster.create(self.name)
        yield

    def takes(self, line: Line) -> bool:
        """Return true: it has all lines."""
        return True

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Run its driver."""
        command = (self._peers.python, "-m", "benchmarks.peers.drive_eventsourcing")
        return drive(command, work_of(line, scale, self._cluster.dsn(self.name)))


class Emmett:
    """Emmett on PostgreSQL."""

    name = "emmett"
    guarantee = (
        "readers order by (transaction id, position) and wait for open transactions, versions "
        "checked; fsync; one Node.js process, JSON"
    )
    servers: Sequence[int] = ()

    def __init__(self, cluster: Cluster, peers: Installed) -> None:
        self._cluster, self._peers = cluster, peers

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Make a fresh database; the driver migrates it."""
        self._cluster.create(self.name)
        yield

    def takes(self, line: Line) -> bool:
        """Return true where there is Node.js."""
        return self._peers.node is not None

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Run its driver."""
        assert self._peers.node is not None
        command = (self._peers.node, HERE / "drive_emmett.mjs", self._peers.packages)
        return drive(command, work_of(line, scale, self._cluster.dsn(self.name)))


class MessageDb:
    """message-db, driven by pgbench: no client library in between."""

    name = "message_db"
    guarantee = (
        f"order within a category only ({_CATEGORIES} categories), no safe order over all; "
        "versions checked; fsync; pgbench in C"
    )
    servers: Sequence[int] = ()

    def __init__(self, cluster: Cluster, peers: Installed) -> None:
        self._cluster, self._peers = cluster, peers

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Make a fresh database and install its SQL, but for pgcrypto, which PostgreSQL 13 made
        unnecessary.
        """
        dsn = self._cluster.create(self.name)
        command: list[str | Path] = [self._cluster.programs / "psql", dsn, "-q"]
        command += ["-v", "ON_ERROR_STOP=1"]
        for name in _SQL_FILES:
            command += ["-f", self._peers.message_db / f"{name}.sql"]
        quiet = {**os.environ, "PGOPTIONS": "-c client_min_messages=error"}
        subprocess.run(command, check=True, capture_output=True, env=quiet)
        self._cluster.execute(
            self.name, f"ALTER DATABASE {self.name} SET search_path = message_store, public"
        )
        yield

    def takes(self, line: Line) -> bool:
        """Return whether it is an append or a read: subscribers poll at a pace of their own."""
        return line.kind != "deliver"

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Run pgbench for appends, the driver for reads of one category."""
        if line.kind == "read":
            command = (self._peers.python, "-m", "benchmarks.peers.drive_message_db")
            return drive(command, work_of(line, scale, self._cluster.dsn(self.name)))
        with tempfile.TemporaryDirectory(prefix="penstock-bench-pgbench-") as folder:
            return self._pgbench(line, scale, Path(folder))

    def _pgbench(self, line: Line, scale: Scale, folder: Path) -> Figures:
        # No name follows a colon in it: pgbench would take that for a variable.
        data = work_of(line, scale, "").data.replace("'", "''")
        script = folder / "append.sql"
        script.write_text(
            f"\\set stream random(1, {STREAMS // _CATEGORIES})\n"
            f"\\set category random(1, {_CATEGORIES})\n"
            "SELECT count(write_message(gen_random_uuid()::varchar, "
            "('order' || :category || '-' || :stream)::varchar, 'placed', "
            f"'{data}'::jsonb)) "
            f"FROM generate_series(1, {line.batch});\n"
        )
        command = [
            *(self._cluster.programs / "pgbench", "-n", "-M", "prepared", "-f", script),
            *("-c", str(line.clients), "-j", str(min(2, line.clients)), "-l"),
            *("-T", str(max(1, round(scale.seconds + scale.warm_s)))),
            *("--log-prefix", folder / "log", self._cluster.dsn(self.name)),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
        if ended.returncode != 0:
            raise Unavailable(f"pgbench failed: {ended.stderr.strip().splitlines()[-1:]}")
        return _of_log(folder, line, scale)


class UmaDb:
    """UmaDB: its server, and its Python client in threads of one process."""

    name = "umadb"
    guarantee = (
        "gapless total order, no streams or versions (conditions left out); fsync by its own "
        "server in Rust; threads in one Python process, ready-made bytes"
    )

    def __init__(self, peers: Installed) -> None:
        self._peers = peers
        self._url = ""
        self.servers: Sequence[int] = ()

    @contextmanager
    def fresh(self) -> Iterator[None]:
        """Run a server on an empty file."""
        port = free_port()
        with tempfile.TemporaryDirectory(prefix="penstock-bench-umadb-") as folder:
            address = f"127.0.0.1:{port}"
            server = subprocess.Popen(
                [self._peers.umadb, "--listen", address, "--db-path", f"{folder}/uma.db"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                _listening(port, server)
                self._url, self.servers = f"http://{address}", (server.pid,)
                yield
            finally:
                self.servers = ()
                server.terminate()
                server.wait(_START_S)

    def takes(self, line: Line) -> bool:
        """Return true: it has all lines."""
        return True

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Run its driver."""
        command = (self._peers.python, "-m", "benchmarks.peers.drive_umadb")
        return drive(command, work_of(line, scale, self._url))


def versions(peers: Installed) -> dict[str, object]:
    """Return what is pinned, as it is written down with the figures."""
    requirements = (HERE / "requirements.txt").read_text().splitlines()
    package = json.loads((HERE / "package.json").read_text())
    return {
        "python": [line for line in requirements if "==" in line],
        "node": package["dependencies"] if peers.node is not None else None,
        "event_bytes": EVENT_BYTES,
    }


def _listening(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise Unavailable("UmaDB's server does not start")


def _of_log(folder: Path, line: Line, scale: Scale) -> Figures:
    """Read pgbench's log: client, number, microseconds, script, and the time at the end."""
    rows = [
        (int(words[4]) + int(words[5]) / 1e6, int(words[2]))
        for path in folder.glob("log.*")
        for words in map(str.split, path.read_text().splitlines())
    ]
    if not rows:
        raise Unavailable("pgbench finished no transaction")
    last = max(at for at, _ in rows)
    measured = sorted(took for at, took in rows if at > last - scale.seconds)
    return {
        "events_per_s": len(measured) * line.batch / scale.seconds,
        "p50_ms": percentile([float(took) for took in measured], 50) / 1000,
        "p99_ms": percentile([float(took) for took in measured], 99) / 1000,
        "all_events": float(len(rows) * line.batch),
    }
