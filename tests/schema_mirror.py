"""A captured database whose columns change, mirrored by epochs and compared with its source."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from pyspark.sql import SparkSession

from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from cdc import capture, removal, sources
from cdc.capture import Access
from cdc.connect import ConnectClient
from cdc.connectors import Placement
from cdc.database import connected
from cdc.verify import compared_columns, hash_of
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.state.held import Hold
from projections.state.tail import read_whole
from schemas.row_hash import table_hash
from tests.feeding import Epochs

MARKER = "public.marker"


@dataclass
class Mirror:
    """One source whose tables are captured; `public.marker` tells when all has come."""

    dsn: str
    source: sources.Source
    epochs: Epochs

    def execute(self, *statements: str) -> None:
        """Run statements in one transaction."""
        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def catch_up(self) -> None:
        """Run epochs until a row written now, after everything else, is mirrored."""
        mark = uuid.uuid4().hex
        self.execute(f"INSERT INTO marker VALUES ('{mark}')")
        end = time.monotonic() + 120
        while mark not in self.current(MARKER).column("id").to_pylist():
            assert time.monotonic() < end, self.epochs.ingest.waiting_for()
            self.epochs.run()

    def name_of(self, table: str) -> str:
        """Name a table's `current` table."""
        return f"current/{self.source.name}.{table}"

    def current(self, table: str) -> pa.Table:
        """Read a table as readers by name see it; empty before it is there."""
        rows = read_whole(self.epochs.lake, Tables(), self.name_of(table))
        return pa.table({"id": pa.array([], pa.string())}) if rows is None else rows

    def held(self) -> dict[str, Hold]:
        """Return the tables that stand still."""
        return dict(self.epochs.ingest.held().get(self.source.name, {}))

    def differing(self, table: str) -> list[str]:
        """Return what differs between a table and its source: rows, or columns by name."""
        current = self.current(table)
        with connected(self.dsn) as connection:
            columns = compared_columns(connection, table)
            missing = [c.name for c in columns if c.name not in current.column_names]
            if missing:
                return missing
            names = [column.name for column in columns]
            if table_hash(current, names) == hash_of(connection, table, columns):
                return []
            differing = [
                column.name
                for column in columns
                if table_hash(current, [column.name]) != hash_of(connection, table, [column])
            ]
            return differing or ["rows"]


@contextmanager
def mirrored(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    dsn: str,
    tables: tuple[str, ...],
    keys: dict[str, tuple[str, ...]] | None = None,
) -> Iterator[Mirror]:
    """Capture tables of a database (and `public.marker`, made here) until the end."""
    name = f"m{uuid.uuid4().hex[:8]}"
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE marker (id text PRIMARY KEY)")
    source, _ = sources.declare(
        name, dsn=dsn, tables=(*tables, MARKER), keys=keys, snapshot=sources.CONNECTOR
    )
    registry = stack.required("registry.url")
    placement = Placement(
        workspace="test", topic_prefix=prefix, partitions=2, registry_url=registry
    )
    router = TopicRouter(prefix=prefix, registry_url=registry, captures={name: {}})
    epochs = Epochs(spark, lake, router, stack.required("kafka.bootstrap"))
    with ConnectClient(stack.required("connect.url")) as connect:
        capture.ensure(source, Access(dsn=dsn), placement, connect)
        try:
            yield Mirror(dsn, source, epochs)
        finally:
            removal.remove(name, dsn, placement, connect)
