"""Rows as bytes of Arrow's stream format, by which processes hand them to each other."""

from __future__ import annotations

import pyarrow as pa


def packed(rows: pa.Table) -> pa.Buffer:
    """Return the bytes of some rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def unpacked(told: bytes | memoryview | pa.Buffer) -> pa.Table:
    """Return the rows that `packed` made bytes of."""
    with pa.ipc.open_stream(told) as stream:
        return stream.read_all()
