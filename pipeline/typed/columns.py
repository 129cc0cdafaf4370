"""Columns that typed tables have beside the fields of what they hold, and when rows are seen."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import pyarrow as pa

from kernel.positions import Epoch
from lake.table_columns import UTC_MICROS

EPOCH, LATE, TIME, SEQ_HI, SEQ_LO = "_epoch", "_late", "_time", "_seq_hi", "_seq_lo"
INGESTED_AT = "_ingested_at"
OPERATION = "_operation"
TRANSACTION, LSN = "_transaction", "_lsn"
"""Of changes: the source's transaction id, and the row's own LSN. The two halves of a changed key
share one."""

TRUNCATES = "_truncates"


def truncates_name(source: str) -> str:
    """Name the table of a source's TRUNCATEs; one row per truncated `table`, hidden columns."""
    return f"typed/{source}.{TRUNCATES}"


EVENT_COLUMNS = pa.schema(
    [
        ("event_id", pa.string()),
        ("stream", pa.string()),
        ("entity_id", pa.string()),
        ("type", pa.string()),
        ("version", pa.int64()),
        ("position", pa.int64()),
        ("occurred_at", UTC_MICROS),
        ("recorded_at", UTC_MICROS),
    ]
)
"""What every typed event has beside its own fields."""


Wanted = Callable[[str], bool]
"""Says of a typed table, by its name, whether it takes part."""


def every(name: str) -> bool:
    """Want all tables."""
    return True


class Visible:
    """For one input: at which epoch each place in its order became visible.

    `places` are heads (positions) or cuts (LSNs), one per epoch, ascending. `without` are ranges
    (after, up to) of places that never become visible: copied rows have what was done there.
    """

    def __init__(
        self,
        before: int,
        places: Sequence[tuple[Epoch, int]],
        without: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.before = before
        self._without = without
        self.up_to = places[-1][1] if places else before
        self._epochs = [epoch for epoch, _ in places]
        self._places = [place for _, place in places]

    @property
    def anything(self) -> bool:
        """Whether the range holds any place at all."""
        return self.up_to > self.before

    @property
    def after_epoch(self) -> int:
        """The epoch before the first of them."""
        return self._epochs[0] - 1 if self._epochs else 0

    def leaves_out(self, place: int) -> bool:
        """Say whether a place never becomes visible."""
        return any(after < place <= up_to for after, up_to in self._without)

    def epoch_of(self, place: int) -> int:
        """Return the first epoch whose head or cut covers `place`."""
        return self._epochs[bisect.bisect_left(self._places, place)]
