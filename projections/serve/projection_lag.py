"""How far a projection is behind the log: in rows, and in seconds. Read from the manifest alone."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, datetime

from lake.layout import Lake
from lake.rows import SmallTables

_SINCE = """
SELECT epoch, counts, at FROM rows WHERE kind = 'committed' AND epoch > {after} ORDER BY epoch
"""
_ROWS = ("events", "changes", "records")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionLag:
    """What a projection has not taken in: rows of the log, of whatever source, and since when.

    `seconds` is the age of the oldest epoch with any, 0 where it lacks none.
    """

    rows: int
    seconds: float


class EpochsSince:
    """The epochs after one, by which several projections are judged at the same moment."""

    def __init__(self, lake: Lake, tables: SmallTables, after: int) -> None:
        found = tables.select(lake.epochs, _SINCE.format(after=after))
        self._numbers = [int(str(row["epoch"])) for row in found]
        self._rows = [_rows_of(row["counts"]) for row in found]
        self._committed = [row["at"] for row in found]
        self._now = _now()

    def behind(self, epoch: int) -> ProjectionLag:
        """Return the lag of who has an epoch that is not before the one they begin after."""
        first = bisect_right(self._numbers, epoch)
        lacking = (n for n in range(first, len(self._numbers)) if self._rows[n])
        if (with_rows := next(lacking, None)) is None:
            return ProjectionLag(rows=0, seconds=0.0)
        oldest = self._committed[with_rows]
        assert isinstance(oldest, datetime)
        age = (self._now - oldest).total_seconds()
        return ProjectionLag(rows=sum(self._rows[first:]), seconds=round(max(age, 0.0), 3))


def _now() -> datetime:
    return datetime.now(UTC)


def _rows_of(counts: object) -> int:
    known = json.loads(str(counts or "{}"))
    return sum(int(known.get(kind, 0)) for kind in _ROWS)
