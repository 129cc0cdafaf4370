"""The option `deleted` of a source on a topic: which of its records end their key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from projections.sql.ending import ending_text
from schemas.topic_records import TopicShape


@dataclass(frozen=True, slots=True)
class Endings:
    """Computes a condition over rows with the declared columns; see `topic_rows.Ends`."""

    condition: str
    columns: Sequence[str]

    def __call__(self, rows: pa.Table) -> pa.Array:
        """Return for each row whether it ends its key; NULL where that cannot be said."""
        known = {name: _naive(rows[name]) for name in self.columns}
        known["__place"] = pa.array(range(rows.num_rows), pa.int64())
        with duckdb.connect() as connection:
            connection.execute("SET threads = 1")
            connection.register("records", pa.table(known))
            found: pa.Table = connection.sql(
                f"SELECT CAST({self.condition} AS BOOLEAN) AS ends FROM records ORDER BY __place"
            ).to_arrow_table()
        ends: pa.Array = found["ends"].combine_chunks()
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
