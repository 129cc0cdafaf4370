"""How far a source is ahead of the tables."""

from __future__ import annotations

from dataclasses import dataclass


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
