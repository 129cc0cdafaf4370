"""The kinds of position in the system, each its own type, so that none converts silently.

All are integers that only grow within their own scope; comparing two of different kinds is a
mistake that the type checker refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, NewType

from kernel.errors import InvalidRequest

Version = NewType("Version", int)
"""Place of an event in its stream: 0, 1, 2 … without gaps."""

Position = NewType("Position", int)
"""Place of an event in its whole store: 1, 2, 3 … without gaps, in commit order."""

LARGEST: Final = 2**63 - 1
"""The greatest version or position that there can be: both are `bigint` in PostgreSQL."""
_MOST_DIGITS = len(str(LARGEST))

Lsn = NewType("Lsn", int)
"""Byte position in a PostgreSQL write-ahead log. Not an order of rows by itself."""

KafkaOffset = NewType("KafkaOffset", int)
"""Place of a record in a topic partition. Has holes where transactions left markers."""

Offsets = Mapping[str, Mapping[str, int]]
"""Topic -> partition -> offset of the next record, as Spark writes them."""


class TopicId(NamedTuple):
    """Which topic offsets belong to: the id that Kafka gave it, and its partitions at first sight.

    A topic that is deleted and made again has the same name and another id.
    """

    id: str
    partitions: int


DeltaVersion = NewType("DeltaVersion", int)
"""Version of one Delta table."""

Epoch = NewType("Epoch", int)
"""Penstock's own counter of committed batches: 1, 2, 3 …, never reused."""

CLOSED: Final = Epoch(2**62)
"""Cursor of a generation that was replaced: its writer must not touch the table any more. No epoch
is that great, and none may be noted that is."""


def covers(read: Offsets, wanted: Offsets) -> bool:
    """Say whether every partition of `wanted` has been read up to its offset there."""
    return all(
        read.get(topic, {}).get(partition, 0) >= offset
        for topic, partitions in wanted.items()
        for partition, offset in partitions.items()
    )


def lsn_from_text(text: str) -> Lsn:
    """Parse PostgreSQL's `16/B374D848` notation.

    Raises `ValueError` for anything else.
    """
    high, separator, low = text.partition("/")
    if not separator:
        raise ValueError(f"not an LSN: {text!r} (expected two hexadecimal numbers, as 16/B374D848)")
    return Lsn((int(high, 16) << 32) | int(low, 16))


def lsn_to_text(lsn: Lsn) -> str:
    """Render an LSN as PostgreSQL does, `16/B374D848`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def position_of(text: str, option: str) -> int | None:
    """Read a position; None for what is no whole number. Raises `InvalidRequest` beyond 64 bits."""
    if not text.isdecimal():
        return None
    # Python reads no number of thousands of digits.
    if len(text) > _MOST_DIGITS or int(text) > LARGEST:
        raise InvalidRequest(
            f"{option} {text[:_MOST_DIGITS]} is no position: these have at most 64 bits",
            remedy=f"As {option} 1",
        )
    return int(text)
