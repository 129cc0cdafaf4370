"""A lake table as it is compared: its rows, with what changed since laid over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds

from pipeline.verification.cells import sized, text_sql
from schemas.identifiers import duckdb_name
from schemas.key_ranges import KeyColumn, fits


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Rows over the ones below: those whose `deleted` is true take their key away."""

    rows: ds.Dataset | pa.Table
    deleted: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeState:
    """One row per key: `base`, with `layers` over it, the last one on top.

    `base` None: nothing is below. `soft`: the base keeps deleted rows, marked in `_deleted`.
    """

    key: tuple[str, ...]
    base: ds.Dataset | None
    layers: tuple[Layer, ...] = ()
    soft: bool = False

    def kind_of(self, column: str) -> pa.DataType:
        """Return a column's type, the newest one; null where no part has the column."""
        for part in (*(layer.rows for layer in reversed(self.layers)), self.base):
            if part is not None and column in part.schema.names:
                found: pa.DataType = part.schema.field(column).type
                if not pa.types.is_null(found):
                    return found
        return pa.null()

    def lacks(self, column: str) -> bool:
        """Say whether no part has the column."""
        parts = (self.base, *(layer.rows for layer in self.layers))
        return all(part is None or column not in part.schema.names for part in parts)

    def keeps_order(self, ordered: Sequence[KeyColumn]) -> bool:
        """Say whether ranges of the source's keys are ranges here."""
        kinds = [(column.order, self.kind_of(column.lake_name)) for column in ordered]
        return all(pa.types.is_null(kind) or fits(order, kind) for order, kind in kinds)

    def cell(self, column: str) -> str:
        """Return DuckDB's expression for a column's cell, over normalised columns."""
        return sized(text_sql(self.kind_of(column), duckdb_name(column)))

    def cells(self, columns: Sequence[str]) -> str:
        """Return DuckDB's expression for the cells of some columns: what is hashed of a row."""
        return " || ',' || ".join(map(self.cell, columns))
