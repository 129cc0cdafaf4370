"""What a cut knows of the transactions of its source: rows that came, ENDs, what they come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

NOWHERE = 2**62  # Behind every END: the order of a transaction of which none is known.


@dataclass(slots=True)
class SeenRows:
    """Rows of a transaction: counts, the greatest LSN, and the commit before it (`order`)."""

    first_epoch: int
    counts: dict[str, int]
    lsn: int = 0
    order: int = NOWHERE


@dataclass(frozen=True, slots=True)
class End:
    """The END of a committed transaction, with the rows that it counts by table."""

    transaction_id: str
    lsn: int
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What became complete: transactions in commit order, and whether the snapshot did.

    `from_epoch` is the first epoch whose log rows belong to it; None when nothing did. `lacks`
    are tables of which rows are in quarantine that belong to these transactions. `most_rows` is
    how many rows of one table that is folded they have, of the table that has most; `rows` is how
    many of all tables have come.
    """

    transactions: tuple[str, ...]
    snapshot: bool
    from_epoch: int | None
    lacks: frozenset[str] = frozenset()
    most_rows: int = 0
    rows: int = 0

    @property
    def anything(self) -> bool:
        """Whether there is something to fold."""
        return self.snapshot or bool(self.transactions)

    @property
    def plain(self) -> bool:
        """Whether all rows of it have come, as changes: nothing is to be added to them any more."""
        return not self.snapshot and not self.lacks
