"""One range of one table, checked while everybody writes: by marks in the stream, not by a slot.

Before all, the range's rows are read on both sides as they are: a key that is equal now is equal,
and where nothing is written no mark has to travel, so that verification makes no epochs of its own.
The keys that differ go on:

1. A message marks `low` in the source's stream.
2. The range's rows are read: key and hash, one statement.
3. A message marks `high`. Once the lake's cut has passed it, everything that was read is in the
   log, and the lake's rows are read as of the newest epoch.
4. Keys that changed after `low` may differ for that reason alone: they are checked again, by
   themselves. So are those that differ without a change: a transaction whose commit lies below
   `low` may not have been visible yet in step 2.
5. What still differs is compared at one LSN, by an exported snapshot. Only that is a difference.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds

from cdc.columns import set_text_output
from cdc.database import Connection, connected
from cdc.snapshot.chunks import served_by_index
from cdc.verification import watermarks
from cdc.verification.comparison import Captured, Comparison
from cdc.verification.narrowing import differing_keys
from cdc.verification.source_rows import (
    SourceTable,
    by_key,
    estimated,
    next_bound,
    row_hashes,
)
from kernel.positions import Lsn
from pipeline.commit.manifest_rows import Committed
from pipeline.verification.as_of import Between
from pipeline.verification.hashing import LakeRows
from pipeline.verification.lake_state import LakeState
from schemas.key_ranges import WHOLE, Bound, KeyRange

_ATTEMPTS = 4
_MOST_AGAIN = 5_000
"""Keys that are checked again by themselves; more are left to the comparison at one LSN."""
LEAST_ROWS, MOST_ROWS, PARTS = 5_000, 50_000, 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeStep:
    """What one step found. `suspects`: keys that differ although nothing changed them.

    `moving`: keys that changed at every look. `lsn` is the high mark, or the lake's cut where no
    mark was needed. `busy_s` counts the reading on both sides, not the waiting.
    """

    area: KeyRange
    rows: int
    lsn: Lsn
    epoch: int
    suspects: int
    moving: int
    busy_s: float

    @property
    def settled(self) -> bool:
        """Whether every key of the range was found equal."""
        return not self.suspects and not self.moving


@dataclass(frozen=True, slots=True)
class RangePlace:
    """Where the next range of a table begins, and how many rows it is to have."""

    table: SourceTable
    area: KeyRange
    by_range: bool
    rows: int


class ContinuousCheck:
    """Checks ranges of one source's tables. For one thread."""

    def __init__(self, comparison: Comparison, dsn: str, *, timeout_s: float) -> None:
        self._comparison = comparison
        self._reader = comparison.reader
        self._dsn = dsn
        self._timeout_s = timeout_s

    def place(self, captured: Captured, low: Bound | None, rows: int | None) -> RangePlace:
        """Find the range that begins at `low`. `rows`: of the table, None to ask for them.

        A table whose key no index serves in the lake's order is one range.
        """
        with connected(self._dsn) as connection:
            set_text_output(connection)
            table = captured.described(connection)
            rows = estimated(connection, table) if rows is None else rows
            ordered = table.ordered
            if (
                ordered is None
                or not served_by_index(connection, captured.table, ordered)
                or not self._newest(captured, table, self._reader.last()).keeps_order(ordered)
            ):
                return RangePlace(table, WHOLE, False, rows)
            size = min(max(rows // PARTS, LEAST_ROWS), MOST_ROWS)
            high = next_bound(connection, table, low, size)
            return RangePlace(table, KeyRange(low=low, high=high), True, rows)

    def check(self, captured: Captured, place: RangePlace) -> RangeStep:
        """Check a range. Raises `Unavailable` when source or lake do not answer in time."""
        rows, differing, reached, busy_s = self._glance(captured, place)
        lsn, suspects = Lsn(reached.cuts.get(captured.source, 0)), list[str]()
        keys = differing if len(differing) <= _MOST_AGAIN else None
        for _ in range(_ATTEMPTS if differing else 0):
            since = self._reader.last()
            ours, low, lsn, took_s = self._source_rows(place, keys)
            reached = self._await(captured.source, lsn, since)
            began = time.monotonic()
            differing, changed = self._compare(captured, place, keys, ours, low, since, reached)
            busy_s += took_s + time.monotonic() - began
            suspects = [key for key in differing if key not in changed]
            keys = differing
            if not differing or len(differing) > _MOST_AGAIN:
                break
        return RangeStep(
            area=place.area,
            rows=rows,
            lsn=lsn,
            epoch=reached.epoch,
            suspects=len(suspects),
            moving=len(differing) - len(suspects),
            busy_s=busy_s,
        )

    def _glance(
        self, captured: Captured, place: RangePlace
    ) -> tuple[int, list[str], Committed, float]:
        """Return the source's rows, the keys that differ as both sides are, the epoch, seconds."""
        reached, began = self._reader.last(), time.monotonic()
        with connected(self._dsn) as connection:
            set_text_output(connection)
            ours = _read(connection, place, None)
        differing = self._differing(captured, place, None, ours, reached)
        return len(ours), differing, reached, time.monotonic() - began

    def _source_rows(
        self, place: RangePlace, keys: Sequence[str] | None
    ) -> tuple[dict[str, str], Lsn, Lsn, float]:
        with connected(self._dsn) as connection:
            set_text_output(connection)
            low = watermarks.emit(connection)
            began = time.monotonic()
            ours = _read(connection, place, keys)
            took_s = time.monotonic() - began
            return ours, low, watermarks.emit(connection), took_s

    def _await(self, source: str, high: Lsn, since: Committed) -> Committed:
        self._comparison.await_lsn(source, high, since=since.epoch, timeout_s=self._timeout_s)
        return self._reader.last()

    def _compare(
        self,
        captured: Captured,
        place: RangePlace,
        keys: Sequence[str] | None,
        ours: dict[str, str],
        low: Lsn,
        since: Committed,
        reached: Committed,
    ) -> tuple[list[str], frozenset[str]]:
        """Return the keys that differ, and those that changed after `low`."""
        differing = self._differing(captured, place, keys, ours, reached)
        if not differing:
            return [], frozenset()
        truncated, changed = self._reader.changed_keys(
            captured.source, captured.table, low, reached, since=since
        )
        if truncated:
            return differing, frozenset(differing)
        state = self._newest(captured, place.table, reached)
        return differing, _named(changed, state, place.table.lake_key)

    def _differing(
        self,
        captured: Captured,
        place: RangePlace,
        keys: Sequence[str] | None,
        ours: dict[str, str],
        reached: Committed,
    ) -> list[str]:
        state = self._newest(captured, place.table, reached)
        rows = LakeRows(state, place.table.lake_names, place.table.ordered)
        theirs = rows.row_hashes(within=place.area, keys=keys)
        return [key for key, _ in differing_keys(ours, theirs)]

    def _newest(self, captured: Captured, table: SourceTable, at: Committed) -> LakeState:
        """Open the lake's table as of an epoch."""
        cut = Lsn(at.cuts.get(captured.source, 0))
        return self._reader.table(
            captured.source,
            captured.table,
            Between(lsn=cut, base=at, reached=at),
            key=table.lake_key,
            soft=captured.catalog.soft_deletes,
        ).state


def _read(connection: Connection, place: RangePlace, keys: Sequence[str] | None) -> dict[str, str]:
    return by_key(row_hashes(connection, place.table, within=place.area, keys=keys))


def _named(changed: pa.Table | None, state: LakeState, names: tuple[str, ...]) -> frozenset[str]:
    """Return changed keys as both sides name them."""
    if changed is None:
        return frozenset()
    keys = LakeRows(LakeState(key=names, base=ds.dataset(changed)), names, None)
    return frozenset(key for key, _ in keys.row_hashes(within=WHOLE))
