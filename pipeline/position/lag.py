"""How far sources are ahead of the tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """What may be missing from the tables: bytes of WAL, seconds since the oldest such commit.

    `records` are in Kafka and in no epoch yet (transaction markers included). `unknown` says why
    the figures are those of an earlier look.
    """

    bytes: int
    seconds: float
    records: int
    unknown: str | None = None


class StoreHeads(Protocol):
    """Reads how far the event store itself has come, so that lag is never understated."""

    def lag(self, heads: Mapping[str, int]) -> tuple[str, int, float]:
        """Return (store, events behind, age in seconds of the oldest one missing)."""
        ...
