"""The database under a captured source, as every world of captured tables has one."""

from __future__ import annotations

import psycopg
import pyarrow as pa

from cdc.database import connected
from schemas.row_hash import table_hash
from tests.support.sources.source_hashes import compared_columns, hash_of


class SourceDatabase:
    """Writes to a source and compares with it. Who mixes it in has a `dsn`."""

    dsn: str

    def execute(self, *statements: str) -> None:
        """Run statements, all in one transaction."""
        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def mark(self) -> int:
        """Commit a transaction behind all others; return an LSN that its END is beyond."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            query = "SELECT pg_logical_emit_message(true, 'test', '') - '0/0'::pg_lsn"
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def differences(self, table: str, rows: pa.Table) -> list[str]:
        """Return what differs from the source's own SELECT: columns by name, or `rows`."""
        with connected(self.dsn) as connection:
            columns = compared_columns(connection, table)
            names = [column.lake_name for column in columns]
            if missing := [name for name in names if name not in rows.column_names]:
                return missing
            if table_hash(rows, names) == hash_of(connection, table, columns):
                return []
            differing = [
                column.name
                for column in columns
                if table_hash(rows, [column.lake_name]) != hash_of(connection, table, [column])
            ]
            return differing or ["rows"]
