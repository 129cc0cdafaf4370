"""A source whose tables are copied beside its stream: workspace, connector, epochs, copier."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pyarrow as pa
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from apps.capture import capture_site
from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from cdc import sources
from cdc.connect import ConnectClient
from cdc.copies.table_copier import TableCopier
from cdc.upkeep import lifecycle
from lake.layers import read_whole
from lake.layout import current_name
from lake.tables import Tables
from pipeline.installs.install_book import InstallBook
from schemas.registry import ConfluentRegistry
from tests.support.lake.feeding import Epochs
from tests.support.services.waiting import until
from tests.support.sources.databases import leave
from tests.support.sources.followed_database import FollowedDatabase
from tests.support.sources.workspaces import Workspace

CHUNK_BYTES = 256 * 1024
"""Small, so that a table of a test has many chunks."""


class Copied(FollowedDatabase):
    """One source of a workspace of its own; `close` leaves nothing behind."""

    def __init__(
        self,
        folder: Path,
        stack: Settings,
        spark: SparkSession,
        dsn: str,
        tables: Sequence[str],
        *,
        snapshot: str = sources.COPY,
    ) -> None:
        self.dsn = make_conninfo(dsn)
        self.tables = tuple(tables)
        self.workspace = Workspace(folder, stack)
        self.name = self.workspace.source
        declared, password = sources.declare(self.name, dsn=dsn, tables=self.tables)
        sources.save(folder, declared, password)
        file = self.workspace.file
        file.write_text(f'snapshot = "{snapshot}"\n' + file.read_text().replace("snapshot =", "#"))
        self.lake = self.workspace.lake
        router = TopicRouter(
            prefix="", registry_url=stack.required("registry.url"), captures={self.name: {}}
        )
        self.epochs = Epochs(spark, self.lake, router, stack.required("kafka.bootstrap"))
        self._stack = stack

    @property
    def source(self) -> sources.Source:
        """The source as declared."""
        return sources.load(self.workspace.folder, self.name)

    def start(self) -> None:
        """Start the connector, as `source add` does."""
        with ConnectClient(self._stack.required("connect.url")) as connect:
            lifecycle.start(capture_site(self.workspace.settings), self.source, connect)

    def restart(self) -> None:
        """Let the connector begin anew, with what the catalog says now."""
        connector = f"{self.workspace.settings.name}-{self.name}"
        with ConnectClient(self._stack.required("connect.url")) as connect:
            connect.stop(connector)
            connect.await_status(connector, lambda s: s.task is None, timeout_s=30.0)
            connect.resume(connector)
            connect.await_running(connector)

    def close(self) -> None:
        """Remove connector and slot."""
        self.epochs.close()
        leave(self._stack, self.workspace.name, self.name, self.dsn)

    def copier(self) -> TableCopier:
        """Make the pipeline's copier."""
        registry = ConfluentRegistry(self._stack.required("registry.url"))
        return TableCopier(
            capture_site(self.workspace.settings), self.lake, registry, chunk_bytes=CHUNK_BYTES
        )

    @contextmanager
    def copying(self) -> Iterator[TableCopier]:
        """Run the copier beside the block."""
        copier, stop = self.copier(), threading.Event()
        thread = threading.Thread(target=copier.run, args=(stop,), name="copier")
        thread.start()
        try:
            yield copier
        finally:
            stop.set()
            thread.join(60)

    def installed(self) -> int:
        """Return how many installs have become tables."""
        return sum(len(done.installs) for done in self.epochs.manifest.between(0, 10**9))

    def run_until_installed(self, number: int) -> None:
        """Run epochs until that many installs have become tables."""
        self.run_until(lambda: self.installed() >= number, f"{number} tables are installed")

    def standing(self) -> object:
        """Return what the book of installs says, for messages."""
        found = InstallBook(self.lake, Tables()).entries()
        book = [f"{entry.number} {entry.kind} {entry.id}" for entry in found]
        return book, self.epochs.ingest.waiting_for(), self.epochs.ingest.held()

    def current(self, table: str, *, newest: bool = False) -> pa.Table | None:
        """Read a table by name at the newest epoch, or as it is right now."""
        last = self.epochs.manifest.last()
        at = None if newest else last.tables if last is not None else {}
        return read_whole(self.lake, Tables(), current_name(self.name, table), at=at)

    def differing(self, *, newest: bool = False) -> list[str]:
        """Return the tables that differ from the source."""
        found = {table: self.current(table, newest=newest) for table in self.tables}
        return [t for t, rows in found.items() if rows is None or self.differences(t, rows)]


class Writer(threading.Thread):
    """Moves money between accounts until `finish`: three rows of two tables in each transaction."""

    def __init__(self, dsn: str, accounts: int) -> None:
        super().__init__(name="writer", daemon=True)
        self.done = 0
        self._dsn = dsn
        self._accounts = accounts
        self._end = threading.Event()

    def run(self) -> None:
        change = "UPDATE accounts SET balance = balance + %s WHERE id = %s"
        with psycopg.connect(self._dsn) as connection:
            while not self._end.wait(0.005):
                self.done += 1
                one = self.done * 7919 % self._accounts + 1
                other = self.done * 104729 % self._accounts + 1
                connection.execute(change, (-1, one))
                connection.execute(change, (1, other))
                connection.execute(
                    "INSERT INTO transfers (from_id, to_id) VALUES (%s, %s)", (one, other)
                )
                if self.done % 50 == 0:
                    gone = self.done // 50
                    connection.execute("DELETE FROM transfers WHERE id = %s", (gone,))
                connection.commit()

    def finish(self) -> int:
        """End and wait; return the number of transactions."""
        self._end.set()
        self.join(30)
        return self.done


BANK = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, note text);
INSERT INTO accounts SELECT i, 100, repeat('x', 100) FROM generate_series(1, {rows}) i;
CREATE TABLE transfers (
    id serial PRIMARY KEY, from_id int, to_id int, at timestamptz DEFAULT now()
);
INSERT INTO transfers (from_id, to_id) VALUES (1, 2);
"""
BANK_TABLES = ("public.accounts", "public.transfers")


def await_chunks(copied: Copied, number: int) -> None:
    """Wait until so many chunks of the first table are staged."""
    pattern = f"current/{copied.name}.{copied.tables[0]}/_gen/*/part-*.parquet"
    until(
        lambda: len(list(Path(copied.lake.root).glob(pattern))) >= number,
        f"{number} chunks are staged",
        deadline_s=60,
    )
