"""What a cut knows of the transactions of its source: rows that came, ENDs, what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

MOST_TRANSACTIONS = 100_000
"""So many transactions with rows become foldable of a source at once: an epoch names each."""
NOWHERE = 2**62  # Behind every END: the order of a transaction of which none is known.


@dataclass(slots=True)
class SeenRows:
    """Rows of a transaction or of a snapshot: counts, the greatest LSN, and the commit before it.

    `order` is that commit, `sizes` are the bytes of the rows' keys and values, by table as the
    counts. What was seen before bytes were counted has none.
    """

    first_epoch: int
    counts: dict[str, int]
    lsn: int = 0
    order: int = NOWHERE
    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, table: str, rows: int, size: int, lsn: int, order: int) -> None:
        """Count rows of a table; `order` is 0 where it is not known."""
        self.counts[table] = self.counts.get(table, 0) + rows
        if size:
            self.sizes[table] = self.sizes.get(table, 0) + size
        self.lsn, self.order = max(self.lsn, lsn), min(self.order, order or NOWHERE)

    def to_json(self) -> list[object]:
        """Return what `SeenRows(*kept)` restores."""
        return [self.first_epoch, self.counts, self.lsn, self.order, self.sizes]


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
    how many rows of one table that is folded they have, of the table that has most, `most_bytes`
    how many bytes of one; `rows` is how many rows of all tables have come.
    """

    transactions: tuple[str, ...]
    snapshot: bool
    from_epoch: int | None
    lacks: frozenset[str] = frozenset()
    most_rows: int = 0
    most_bytes: int = 0
    rows: int = 0

    @classmethod
    def of(
        cls,
        done: Mapping[str, SeenRows],
        snapshot: SeenRows | None,
        lacks: Iterable[str],
        folds: Callable[[str], bool],
    ) -> Advance:
        """Return what transactions with rows come to, in commit order; `folds` says of a table
        whether its rows are folded."""
        rows, sizes = Counter[str](), Counter[str]()
        for seen in done.values():
            rows.update(seen.counts)
            sizes.update(seen.sizes)
        epochs = [seen.first_epoch for seen in done.values()]
        if snapshot is not None and snapshot.counts:
            epochs.append(snapshot.first_epoch)
            rows.update(snapshot.counts)
            sizes.update(snapshot.sizes)
        return cls(
            transactions=tuple(done),
            snapshot=snapshot is not None,
            from_epoch=min(epochs, default=None),
            lacks=frozenset(lacks),
            most_rows=max((n for table, n in rows.items() if folds(table)), default=0),
            most_bytes=max((n for table, n in sizes.items() if folds(table)), default=0),
            rows=rows.total(),
        )

    @property
    def anything(self) -> bool:
        """Whether there is something to fold."""
        return self.snapshot or bool(self.transactions)

    @property
    def plain(self) -> bool:
        """Whether all rows of it have come, as changes: nothing is to be added to them any more."""
        return not self.snapshot and not self.lacks
