"""The Confluent framing of Avro bytes: a zero byte, a four-byte big-endian schema id, the body."""

from __future__ import annotations

import struct

from kernel.errors import SchemaViolation

_HEADER = struct.Struct(">bI")
HEADER_BYTES = _HEADER.size
UNREADABLE = (
    EOFError,
    ValueError,
    LookupError,
    ArithmeticError,
    TypeError,
    MemoryError,
    RecursionError,
    StopIteration,
    struct.error,
)
"""What fastavro raises for a body that another schema wrote, or none."""


def frame(schema_id: int, body: bytes) -> bytes:
    """Put the framing before an Avro body."""
    return _HEADER.pack(0, schema_id) + body


def schema_id_of(framed: bytes) -> int:
    """Return the schema id of framed bytes.

    Raises `SchemaViolation` when the bytes are too short or do not begin with the zero byte.
    """
    if len(framed) < HEADER_BYTES:
        raise SchemaViolation(f"{len(framed)} bytes are too short for framed Avro (at least 5)")
    magic, schema_id = _HEADER.unpack_from(framed)
    if magic != 0:
        raise SchemaViolation(f"framed Avro begins with byte 0, found {magic}")
    return int(schema_id)
