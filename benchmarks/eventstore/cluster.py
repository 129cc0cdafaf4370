"""One PostgreSQL for all stores that are measured, durable, with a database for each."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from kernel.errors import Unavailable
from stack.accounts import Account, postgres_place
from stack.workspace import Workspace

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "wal_level": "logical",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "512MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "5min",
    "jit": "off",
    "timezone": "UTC",
}
"""What the server runs with; these are written down with the figures."""

_START_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A running PostgreSQL. `programs` holds `pgbench` and `psql` too."""

    pid: int
    port: int
    programs: Path

    def dsn(self, database: str) -> str:
        """Return the address of a database, as a superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create(self, database: str, *, template: str = "template0") -> str:
        """Make a database, a copy of `template`, in place of one of that name; return its DSN."""
        self.execute("postgres", f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")
        self.execute(
            "postgres", f"CREATE DATABASE {database} TEMPLATE {template} STRATEGY file_copy"
        )
        return self.dsn(database)

    def execute(self, database: str, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def settings(self) -> dict[str, str]:
        """Return the settings that bear on durability and speed, as the server has them."""
        names = [*SETTINGS, "wal_sync_method", "wal_compression", "commit_delay"]
        with psycopg.connect(self.dsn("postgres")) as connection:
            rows = connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s)", (names,)
            )
            return dict(rows.fetchall())


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Make a cluster in `folder`, run it, and delete it at the end."""
    # PostgreSQL runs as a user of its own, who must be able to pass this folder.
    folder.chmod(0o711)
    place = postgres_place(Workspace.at(folder))
    home = folder / "postgres"
    home.mkdir()
    if place.account.uid is not None:
        os.chown(home, place.account.uid, -1)
    initdb = ("initdb", "-D", home / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8")
    locale = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
    subprocess.run(
        [place.programs / initdb[0], *initdb[1:], *locale],
        check=True,
        capture_output=True,
        user=place.account.uid,
        cwd=home,
    )
    port = free_port()
    process = _start(place.programs, home, port, place.account)
    try:
        cluster = Cluster(pid=process.pid, port=port, programs=place.programs)
        _wait(cluster, process)
        yield cluster
    finally:
        # "Fast" shutdown: ends sessions instead of waiting for them.
        process.send_signal(signal.SIGINT)
        process.wait(_START_S)
        shutil.rmtree(home)


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _start(programs: Path, home: Path, port: int, account: Account) -> subprocess.Popen[bytes]:
    options = [f"--{name}={value}" for name, value in SETTINGS.items()]
    with (home / "log").open("ab") as log:
        return subprocess.Popen(
            [programs / "postgres", "-D", home / "data", "-p", str(port), *options],
            stdout=log,
            stderr=log,
            user=account.uid,
            cwd=home,
        )


def _wait(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            psycopg.connect(cluster.dsn("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise Unavailable("the benchmark's PostgreSQL does not start")
