"""Messages of feeds as they are sent, and the last of them for all who get the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from eventstore.feed import FeedItem
from eventstore.sizes import PAGE_BYTES

_MOST_KEPT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Messages as they are sent, what tells a slow client how far it got with them, and how many
    events or changes they are.
    """

    body: bytes
    farewell: bytes = b""
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How items are written."""

    media_type: str
    opening: bytes
    heartbeat: bytes
    event: Callable[[int, bytes], bytes]
    named: Callable[[str, int], bytes]
    failed: Callable[[bytes], bytes]


class Written:
    """What was written last, for all whose feeds come to the very same items.

    Feeds of one filter take their turns with those of others: a few pages are kept.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], tuple[Sequence[FeedItem], Chunk]] = {}
        self._bytes = 0

    def find(self, form: Form, items: Sequence[FeedItem]) -> Chunk | None:
        """Return these items as a chunk, if they were written of late."""
        kept = self._kept.get((form.media_type, id(items)))
        return None if kept is None else kept[1]

    def keep(self, form: Form, items: Sequence[FeedItem], chunk: Chunk) -> None:
        """Keep a chunk, and with it its items, so that no others can be taken for them."""
        if (form.media_type, id(items)) in self._kept:
            return
        self._kept[form.media_type, id(items)] = items, chunk
        self._bytes += len(chunk.body)
        while len(self._kept) > _MOST_KEPT or self._bytes > PAGE_BYTES:
            _, gone = self._kept.pop(next(iter(self._kept)))
            self._bytes -= len(gone.body)
