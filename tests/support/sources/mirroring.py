"""A captured database mirrored into a lake by epochs, step by step or in a thread beside a test."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import SparkSession

from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from cdc import capture
from cdc.capture import SourceAccess
from cdc.connect import ConnectClient
from cdc.connectors import Placement
from cdc.database import connected
from cdc.options import PLAIN
from cdc.sources import CONNECTOR, Source, declare
from cdc.table_checks import key_columns
from cdc.verification.comparison import Captured, Comparison
from cdc.verification.reports import TableReport
from lake.layers import read_whole
from lake.layout import Lake
from lake.tables import Tables
from pipeline.ddl.held_tables import Hold
from projections.run.captured_tables import CapturedTable
from schemas.registry import ConfluentRegistry
from tests.support.lake.feeding import Epochs
from tests.support.sources.databases import leave
from tests.support.sources.followed_database import FollowedDatabase


@dataclass
class Mirror(FollowedDatabase):
    """One captured source and the lake that mirrors it."""

    dsn: str
    source: Source
    placement: Placement
    epochs: Epochs
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.source.name

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.epochs.lake

    @contextmanager
    def following(self) -> Iterator[None]:
        """Run epochs in a thread, one after the other, until the block ends."""
        stop = threading.Event()

        def run() -> None:
            try:
                while not stop.is_set():
                    self.epochs.run()
                    stop.wait(0.1)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name="epochs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(120)
        assert not self.errors, self.errors

    def name_of(self, table: str) -> str:
        """Name a table's `current` table."""
        return f"current/{self.name}.{table}"

    def path(self, table: str) -> str:
        """Return the path of a table's `current` table."""
        return self.lake.path(self.name_of(table))

    def rows(self, table: str) -> pa.Table:
        """Read a table as whoever opens its path does."""
        found = Tables().read(self.path(table))
        assert found is not None, f"no {self.name_of(table)}"
        return found

    def current(self, table: str) -> pa.Table:
        """Read a table as readers by name see it."""
        found = read_whole(self.lake, Tables(), self.name_of(table))
        assert found is not None, f"no {self.name_of(table)}"
        return found

    def held(self) -> dict[str, Hold]:
        """Return the tables that stand still."""
        return dict(self.epochs.ingest.held().get(self.name, {}))

    def differing(self, table: str) -> list[str]:
        """Return what differs between a table and its source: rows, or columns by name."""
        return self.differences(table, self.current(table))

    def assert_equal(self) -> None:
        """Compare every captured table with its source, row hash for row hash."""
        found = {table: self.differing(table) for table in self.source.tables}
        assert not any(found.values()), found

    def captured(self, *tables: str) -> list[Captured]:
        """Return what a comparison needs to know of tables; all without arguments."""
        with connected(self.dsn) as connection:
            return [
                Captured(
                    source=self.name,
                    table=table,
                    catalog=CapturedTable(
                        keys=self.source.keys.get(table) or key_columns(connection, table)
                    ),
                    options=PLAIN,
                )
                for table in tables or self.source.tables
            ]

    def compare(self, *tables: str, ranges: int | None = None) -> dict[str, TableReport]:
        """Compare tables; somebody must run epochs meanwhile."""
        comparison = Comparison(self.lake, Tables(), self.registry())
        reports = comparison.compare(self.dsn, self.captured(*tables), ranges=ranges, timeout_s=90)
        return {report.table: report for report in reports}

    def registry(self) -> ConfluentRegistry:
        """Return the registry of the stack."""
        return ConfluentRegistry(self.placement.registry_url)


@contextmanager
def mirrored(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    dsn: str,
    tables: Sequence[str],
    keys: dict[str, tuple[str, ...]] | None = None,
) -> Iterator[Mirror]:
    """Capture tables of a database and mirror them; `keys` of those that have no primary key.

    What was made in the database and in Connect is removed at the end.
    """
    name = f"m{uuid.uuid4().hex[:10]}"
    source, _ = declare(name, dsn=dsn, tables=tuple(tables), keys=keys, snapshot=CONNECTOR)
    registry = stack.required("registry.url")
    placement = Placement(
        workspace="test", topic_prefix=prefix, partitions=2, registry_url=registry
    )
    router = TopicRouter(prefix=prefix, registry_url=registry, captures={name: {}})
    epochs = Epochs(spark, lake, router, stack.required("kafka.bootstrap"))
    with ConnectClient(stack.required("connect.url")) as connect:
        capture.ensure(source, SourceAccess(dsn=dsn), placement, connect)
        try:
            yield Mirror(dsn, source, placement, epochs)
        finally:
            epochs.close()
            leave(stack, placement.workspace, name, dsn)
