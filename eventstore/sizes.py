"""How large events are, by which pages, queues and memories are bounded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from eventstore.store import EncodedEvent
from schemas.records import RecordedEvent

PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of events after which a page ends, however few they are. One event it has at least."""

_OBJECT_BYTES: Final = 1_000
"""What the objects of an event take in memory, beside its content."""


def bytes_of(event: EncodedEvent | RecordedEvent) -> int:
    """Return about how many bytes an event's content takes: data, metadata and tags."""
    metadata = len(orjson.dumps(event.metadata)) if event.metadata else 0
    return len(event.data) + metadata + sum(map(len, event.tags))


def memory_of(event: RecordedEvent) -> int:
    """Return about how many bytes an event takes while it is held as an object."""
    return _OBJECT_BYTES + bytes_of(event)


def page_of(events: Sequence[RecordedEvent], most: int) -> Sequence[RecordedEvent]:
    """Return the first events, `most` of them and `PAGE_BYTES` before the last of them at most."""
    before = 0
    for count, event in enumerate(events[:most]):
        if before >= PAGE_BYTES:
            return events[:count]
        before += bytes_of(event)
    return events[:most]
