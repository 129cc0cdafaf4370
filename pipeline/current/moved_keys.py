"""Keys that changed and brought large values along unseen.

An UPDATE of a key arrives as a delete of the old one and an insert of the new one. PostgreSQL does
not send a large value (TOAST) that the UPDATE left alone: the new row's is then the old row's, and
where rows were read at different places in the stream, neither of them may have it.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from schemas.columns import UNCHANGED_COLUMNS, decode_rows
from schemas.records import Operation
from schemas.registry import SchemaLookup


def moved_unseen(rows: pa.Table, schemas: SchemaLookup) -> bool:
    """Say whether any of a table's log rows is an insert whose values were not all sent."""
    inserts = rows.filter(pc.equal(rows["operation"], Operation.INSERT.value))
    for schema_id in pc.unique(inserts["schema_id"]).to_pylist():
        part = inserts.filter(pc.equal(inserts["schema_id"], schema_id))
        images = decode_rows(part["value"].to_pylist(), schemas.schema(schema_id), "after")
        if UNCHANGED_COLUMNS in images.schema.names:
            return True
    return False
