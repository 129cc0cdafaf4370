"""What streams and categories a store has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from eventstore.names import behind_prefix
from kernel.errors import InvalidRequest
from kernel.positions import Position, Version

COUNTED_STREAMS = 1_000
"""Streams of a category that are counted at most: a list of categories must stay cheap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSummary:
    """A stream by its last event. A deleted one shows nothing; a tombstoned one never will."""

    stream: str
    category: str
    version: Version
    position: Position
    recorded_at: datetime
    deleted: bool
    tombstoned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CategorySummary:
    """A category by its last event. It has `streams` streams, or more where `more` says so."""

    category: str
    streams: int
    more: bool
    position: Position
    recorded_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRange:
    """Streams whose names begin with `prefix` and come behind `after`, by code points.

    Raises `InvalidRequest` for a NUL, which no name has.
    """

    prefix: str = ""
    after: str = ""

    def __post_init__(self) -> None:
        """Refuse what cannot be looked for."""
        if "\x00" in self.prefix + self.after:
            raise InvalidRequest("a name holds a NUL character", remedy="Leave it out.")

    @property
    def behind(self) -> str | None:
        """The first name behind all that begin so; None where there is none."""
        return behind_prefix(self.prefix)

    def holds(self, stream: str) -> bool:
        """Return whether a stream is meant."""
        return stream.startswith(self.prefix) and stream > self.after


def range_of(category: str | None, prefix: str | None, after: str | None) -> StreamRange | None:
    """Return which streams are of a category and begin so; None where no stream can be both.

    The category of a stream is what comes before its first `-`, so it is a prefix too.
    """
    begins = "" if category is None else f"{category}-"
    prefix = prefix or ""
    if not (begins.startswith(prefix) or prefix.startswith(begins)):
        return None
    return StreamRange(prefix=max(begins, prefix, key=len), after=after or "")
