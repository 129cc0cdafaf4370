"""What a row change is as a fact of its typed table: its image, with hidden columns.

The driver and Spark's executors both ask it, for all rows of an epoch or for a part of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lake.writer import DELETE, OP, UPSERT
from pipeline.ddl.steps import Evolution
from pipeline.ddl.unchanged_values import Stored, unless_left_alone
from pipeline.log.images import COMMITTED_AT, EVENT_TIME, HI, LO, newest_per_key, row_images
from pipeline.typed.columns import (
    EPOCH,
    INGESTED_AT,
    LATE,
    LSN,
    OPERATION,
    SEQ_HI,
    SEQ_LO,
    TIME,
    TRANSACTION,
)
from pipeline.typed.visible_changes import Stamp
from schemas.records import Operation
from schemas.registry import SchemaLookup

CARRIED = {
    "operation": OPERATION,
    "closed_late": LATE,
    EPOCH: EPOCH,
    "ingested_at": INGESTED_AT,
    "transaction_id": TRANSACTION,
    "lsn": LSN,
}
"""What columns of the log are called in typed tables."""
_OURS = frozenset((*CARRIED.values(), SEQ_HI, SEQ_LO, TIME, "committed_at"))


def fact_images(
    rows: pa.Table, schemas: SchemaLookup, stored: Stored, evolution: Evolution
) -> tuple[pa.Table, tuple[str, ...]]:
    """Return the facts of stamped log rows (`visible_changes.stamped`), and the key columns."""
    images, keys = row_images(rows, schemas, stored=stored, evolution=evolution, carry=CARRIED)
    called = {HI: SEQ_HI, LO: SEQ_LO, EVENT_TIME: TIME, COMMITTED_AT: "committed_at"}
    return images.drop_columns([OP]).rename_columns(called), keys


def newest_facts(images: pa.Table, keys: tuple[str, ...]) -> pa.Table:
    """Return the last image of each key, with `__op`; nothing of what was without a key."""
    newest = newest_per_key(images, keys) if keys else images.slice(0, 0)
    deleted = pc.equal(newest[OPERATION], Operation.DELETE.value)
    newest = newest.append_column(OP, pc.if_else(deleted, DELETE, UPSERT))
    return newest.select([n for n in newest.schema.names if n not in _OURS])


@dataclass(frozen=True, slots=True, kw_only=True)
class FactImages:
    """Makes the facts of the table `name` of log rows, for executors. See `TypedRows`."""

    name: str
    schemas: SchemaLookup
    evolution: Evolution
    stamp: Stamp

    def __call__(self, rows: pa.Table) -> Mapping[str, pa.Table] | None:
        """Return the facts; None where an update left a value alone."""
        made = unless_left_alone(
            lambda stored: fact_images(self.stamp(rows), self.schemas, stored, self.evolution)
        )
        return None if made is None else {self.name: made[0]}
