"""The option `deleted` of a source on a topic: which of its records end their key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from projections.sql.statements.ending import ending_text
from schemas.topic_records import TopicShape


@dataclass(frozen=True, slots=True)
class Endings:
    """Computes a condition over rows with the declared columns; see `topic_rows.Ends`.

    Where it cannot be computed, as a sum that its type does not hold, it is NULL: the record is in
    the log already, and the rows of all others are not to wait for it.
    """

    condition: str
    columns: Sequence[str]

    def __call__(self, rows: pa.Table) -> pa.Array:
        """Return for each row whether it ends its key; NULL where that cannot be said."""
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1")
            return pa.array(self._told(connection, rows), pa.bool_())

    def _told(self, connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> list[bool | None]:
        try:
            return self._computed(connection, rows)
        except (duckdb.DataError, duckdb.InvalidInputException):
            half = rows.num_rows // 2
            if not half:
                return [None]
        # The row that cannot be computed is found by halves.
        return [
            *self._told(connection, rows.slice(0, half)),
            *self._told(connection, rows.slice(half)),
        ]

    def _computed(self, connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> list[bool | None]:
        known = {name: _naive(rows[name]) for name in self.columns}
        known["__place"] = pa.array(range(rows.num_rows), pa.int64())
        connection.register("records", pa.table(known))
        found: pa.Table = connection.sql(
            f"SELECT CAST({self.condition} AS BOOLEAN) AS ends FROM records ORDER BY __place"
        ).to_arrow_table()
        ends: list[bool | None] = found["ends"].to_pylist()
        return ends


def endings_of(shape: TopicShape) -> Endings | None:
    """Return what computes the option `deleted` of a source; None where it has none."""
    if shape.deleted is None:
        return None
    names = [name for name, _ in shape.columns]
    return Endings(ending_text(shape.deleted, shape.columns), names)


def _naive(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return moments without a zone, in UTC: so expressions take them."""
    if pa.types.is_timestamp(column.type):
        return pc.cast(column, pa.timestamp("us"))
    return column
