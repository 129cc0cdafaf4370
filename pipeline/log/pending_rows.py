"""Rows of captured sources that the log has and that no fold has taken yet, in memory.

Nearly every epoch of a backlog ends amid a transaction, whose first rows are folded with the next
epoch. Read from the log, these would have the files of both epochs read and unpacked once more.
Disposable: whoever finds that earlier rows are missing reads the log.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from kernel.positions import Epoch
from lake.table_columns import SNAPSHOTS_TABLE, TRANSACTIONS_TABLE
from pipeline.position.transactions import Advance

_ENDS = pa.array([TRANSACTIONS_TABLE, SNAPSHOTS_TABLE])
MOST_BYTES = 8 * 2**20
"""More rows of one source are read from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AtHand:
    """Log rows of one source: all of the epochs from `first` on that no fold has taken yet."""

    rows: pa.Table
    first: Epoch


class PendingRows:
    """Keeps what an epoch leaves to the next one, by source. For one thread."""

    def __init__(self, *, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: dict[str, tuple[AtHand, Epoch]] = {}

    def take(self, source: str, epoch: Epoch, added: pa.Table | None) -> AtHand | None:
        """Return the rows of a source up to an epoch, which has `added` some; None for none.

        What is not kept again is forgotten.
        """
        kept, through = self._kept.pop(source, (None, Epoch(0)))
        if kept is None or through != epoch - 1:
            return None if added is None else AtHand(rows=added, first=epoch)
        rows = kept.rows if added is None else pa.concat_tables([kept.rows, added])
        return AtHand(rows=rows, first=kept.first)

    def keep(self, source: str, epoch: Epoch, at_hand: AtHand | None, advance: Advance) -> None:
        """Keep what was at hand in an epoch, without what the `advance` of its cut has folded."""
        if at_hand is None:
            return
        rows = at_hand.rows
        names = pa.array(advance.transactions, pa.string())
        gone = pc.or_(
            pc.is_in(rows["transaction_id"], value_set=names),
            pc.is_in(rows["table"], value_set=_ENDS),
        )
        if advance.snapshot:
            gone = pc.or_(gone, pc.fill_null(rows["snapshot"], False))
        left = rows.filter(pc.invert(gone))
        if left.nbytes <= self._most_bytes:
            self._kept[source] = AtHand(rows=left, first=at_hand.first), epoch
