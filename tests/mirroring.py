"""A captured database mirrored into a lake by epochs, step by step or in a thread beside a test."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession

from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from apps.verification.comparing import Captured, Comparison
from apps.verification.reports import TableReport
from cdc import capture, removal
from cdc.capture import Access
from cdc.connect import ConnectClient
from cdc.connectors import Placement
from cdc.options import PLAIN
from cdc.sources import CONNECTOR, Source, declare
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.runner.captured import CapturedTable
from schemas.registry import ConfluentRegistry
from tests.feeding import Epochs


@dataclass
class Mirror:
    """One captured source and the lake that mirrors it."""

    dsn: str
    source: Source
    placement: Placement
    epochs: Epochs
    keys: dict[str, tuple[str, ...]]
    errors: list[BaseException] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The source's name."""
        return self.source.name

    @property
    def lake(self) -> Lake:
        """The lake."""
        return self.epochs.lake

    def execute(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def catch_up(self) -> None:
        """Run epochs until everything written before is folded."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            query = "SELECT pg_logical_emit_message(true, 'test', '') - '0/0'::pg_lsn"
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        end = time.monotonic() + 120
        while self.cut() < int(row[0]):
            assert time.monotonic() < end, self.epochs.ingest.waiting_for()
            self.epochs.run()

    def cut(self) -> int:
        """Return the source's cut."""
        last = self.epochs.ingest.last
        return 0 if last is None else last.cuts.get(self.name, 0)

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

    def current(self, table: str) -> str:
        """Name the table's `current` table."""
        return f"current/{self.name}.{table}"

    def rows(self, table: str) -> pa.Table:
        """Read the table as whoever opens its path does."""
        found = Tables().read(self.lake.path(self.current(table)))
        assert found is not None, f"no {self.current(table)}"
        return found

    def captured(self, *tables: str) -> list[Captured]:
        """Return what a comparison needs to know of tables; all without arguments."""
        return [
            Captured(
                source=self.name,
                table=table,
                catalog=CapturedTable(keys=self.keys[table]),
                options=PLAIN,
            )
            for table in tables or self.keys
        ]

    def compare(self, *tables: str, ranges: int | None = None) -> dict[str, TableReport]:
        """Compare tables; somebody must run epochs meanwhile."""
        comparison = Comparison(self.lake, Tables(), self.registry())
        _, reports = comparison.compare(
            self.dsn, self.captured(*tables), ranges=ranges, timeout_s=90
        )
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
    new_source: Callable[[str], str],
    statements: str,
    keys: dict[str, Sequence[str]],
) -> Iterator[Mirror]:
    """Make a database, capture its tables and mirror them; removes what it made."""
    name = f"m{uuid.uuid4().hex[:10]}"
    dsn = new_source(statements)
    source, _ = declare(name, dsn=dsn, tables=tuple(keys), snapshot=CONNECTOR)
    placement = Placement(
        workspace="test",
        topic_prefix=prefix,
        partitions=2,
        registry_url=stack.required("registry.url"),
    )
    router = TopicRouter(
        prefix=prefix, registry_url=stack.required("registry.url"), captures={name: {}}
    )
    epochs = Epochs(spark, lake, router, stack.required("kafka.bootstrap"))
    with ConnectClient(stack.required("connect.url")) as connect:
        capture.ensure(source, Access(dsn=dsn), placement, connect)
        try:
            yield Mirror(
                dsn, source, placement, epochs, {table: tuple(key) for table, key in keys.items()}
            )
        finally:
            removal.remove(source.name, dsn, placement, connect)
