"""The stack that capture is measured on: a workspace, a source database, a pipeline at will.

PostgreSQL, Kafka, registry and Connect run all the time, the pipeline while a line asks for it.
Everything shares the machine's cores, the load included.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import psycopg
from confluent_kafka.admin import AdminClient

from apps.capture import capture_site
from apps.settings import Settings, load
from benchmarks.eventstore.cluster import free_port
from cdc import sources
from cdc.upkeep import lifecycle
from kernel.errors import Unavailable
from lake.layout import Lake
from pipeline.read.kafka_topics import KafkaTopics
from stack import control
from stack.plan import LOCAL_PARTS
from stack.planning import UpOptions as StackOptions

ROOT = Path(__file__).resolve().parents[2]
PORT_BASE = 25_000
SOURCE = "bench"
COLUMNS = "id, customer_id, status, amount, note, updated_at"
_TABLE = """
DROP TABLE IF EXISTS {name};
CREATE TABLE {name} (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    status text NOT NULL,
    amount numeric(12, 2) NOT NULL,
    note text NOT NULL,
    updated_at timestamptz NOT NULL
);
INSERT INTO {name}
SELECT i, i % 10007, 'new', (i % 100000) / 100.0, md5(i::text) || md5((i + 1)::text), now()
FROM generate_series(1, {rows}) i;
"""


@dataclass(slots=True)
class World:
    """A running stack. `dsn` leads to the source database."""

    folder: Path
    settings: Settings
    dsn: str
    progress: Callable[[str], None]
    captured: tuple[str, ...] = ()

    @property
    def lake(self) -> Lake:
        """The lake that the pipeline writes."""
        return Lake.at(self.settings.lake)

    def make_tables(self, names: Sequence[str], rows: int) -> None:
        """Make tables of `rows` rows each in the source database, in place of those of the name."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for name in names:
                for statement in filter(str.strip, _TABLE.format(name=name, rows=rows).split(";")):
                    connection.execute(statement.encode())

    def capture(self, names: Sequence[str], *, snapshot: str = sources.COPY) -> None:
        """Capture tables of the source database; returns when the connector runs."""
        source, password = sources.declare(
            SOURCE, dsn=self.dsn, tables=tuple(names), snapshot=snapshot
        )
        lifecycle.add(capture_site(self.settings), source, password)
        self.captured = source.tables

    def forget(self) -> None:
        """End the capture, empty its topics and the lake: the next line starts from nothing."""
        if self.captured:
            source = sources.load(self.settings.workspace, SOURCE)
            lifecycle.remove(capture_site(self.settings), source)
            self.captured = ()
            self._drop_topics()
        shutil.rmtree(self.settings.lake, ignore_errors=True)

    def _drop_topics(self) -> None:
        bootstrap = self.settings.required("kafka.bootstrap")
        prefix = f"{self.settings.text('kafka.topic_prefix')}{SOURCE}."
        topics = KafkaTopics(bootstrap).matching(re.escape(prefix) + ".*")
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        for future in admin.delete_topics(list(topics)).values() if topics else ():
            future.result(60)

    @contextmanager
    def pipeline(self, **environment: str) -> Iterator[psutil.Process]:
        """Run the pipeline for the time of the block; yields its process once it is ready."""
        port = free_port()
        own = {
            "PENSTOCK_WORKSPACE": str(self.folder),
            "PENSTOCK_PIPELINE_PORT": str(port),
            **environment,
        }
        with (self.folder / "pipeline.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "apps.pipeline"],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env={**os.environ, **own},
                # As the supervisor starts it: the load has a share of processors of its own.
                start_new_session=True,
            )
        try:
            _await_ready(process, port)
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def running(
    folder: Path, progress: Callable[[str], None], port_base: int = PORT_BASE
) -> Iterator[World]:
    """Start the stack in `folder`, from a lowest port on, and stop it at the end."""
    # PostgreSQL runs as a user of its own, who must be able to pass this folder.
    folder.chmod(0o711)
    progress("  starting the stack")
    control.up(folder, StackOptions(port_base=port_base, parts=LOCAL_PARTS))
    try:
        settings = load(folder)
        dsn = settings.required("postgres.dsn")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE source")
        yield World(folder, settings, dsn.rsplit("/", 1)[0] + "/source", progress)
    finally:
        control.down(folder)


def _await_ready(process: subprocess.Popen[bytes], port: int, timeout_s: float = 600.0) -> None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise Unavailable("the benchmark's pipeline does not start: see pipeline.log in its folder")
