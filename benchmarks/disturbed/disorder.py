"""Records from a seed in a disturbed order: late by minutes, sent twice, out of order."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_MS = 1_714_557_600_000
"""The event time of the first record, milliseconds since 1970: 2024-05-01 10:00 UTC."""

ITEMS = 200
LATE_SHARE, DOUBLE_SHARE = 0.05, 0.05
_LATE_MS = (60_000, 600_000)
_SHUFFLED, _DOUBLE_WITHIN = 200, 5_000
"""Over how many records the order is lost, and how far behind a record its double may come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One fact. `at` is its event time in milliseconds since 1970, which no other record has."""

    number: int
    item: str
    at: int
    amount: int

    def value(self) -> bytes:
        """Return the JSON that is sent; of a double it is the same, byte by byte."""
        told = {"number": self.number, "item": self.item, "at": self.at, "amount": self.amount}
        return json.dumps(told).encode()


def disturbed(seed: int, count: int, per_s: float) -> Sequence[Record]:
    """Return `count` records, and doubles of some beside them, in the order of their sending.

    Event times go on as at the rate `per_s`, but records that are late have one of up to ten
    minutes before.
    """
    dice = random.Random(seed)
    places: list[tuple[float, Record]] = []
    taken: set[int] = set()
    for number in range(count):
        at = FIRST_MS + round(number * 1_000 / per_s)
        if dice.random() < LATE_SHARE:
            at -= dice.randint(*_LATE_MS)
        # Of two records of one time neither is the newest, so there are none.
        while at in taken:
            at -= 1
        taken.add(at)
        record = Record(
            number=number,
            item=f"item-{dice.randrange(ITEMS)}",
            at=at,
            amount=dice.randrange(10_000),
        )
        places.append((number + dice.random() * _SHUFFLED, record))
        if dice.random() < DOUBLE_SHARE:
            places.append((number + _SHUFFLED + dice.random() * _DOUBLE_WITHIN, record))
    return [record for _, record in sorted(places, key=lambda each: each[0])]
