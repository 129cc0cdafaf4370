"""When a silence has lasted for so long that an epoch has to say so.

Who is silent for the `idle_timeout` of its source is not waited for any more. That is judged by
epochs alone, so that whoever asks gets one answer; but while nothing comes there is no epoch. So
one without a row is made when a timeout ends, and then no other until something came.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from pipeline.commit.manifest_rows import Committed
from pipeline.position.progress import Progress


class Silences:
    """Knows when rows of each input came last, as far as they move its watermark.

    For one thread at a time.
    """

    def __init__(self, timeouts: Iterable[timedelta] = ()) -> None:
        self._timeouts = sorted(set(timeouts))
        self._seen: dict[str, dict[str, int]] = {}
        self._moved: dict[str, datetime] = {}
        self._at: datetime | None = None

    def note(self, done: Committed) -> None:
        """Take note of an epoch that was committed: the newest."""
        if not self._timeouts:
            return
        seen = Progress.from_json(done.progress).watermarks.seen
        moved = [name for name, places in seen.items() if places != self._seen.get(name)]
        self._moved.update(dict.fromkeys(moved, done.at))
        self._seen, self._at = seen, done.at

    def due(self, now: datetime) -> bool:
        """Say whether a timeout of an input has ended since the newest epoch: another would say so.

        Of which input a timeout is nobody knows here: there is an epoch too many now and then, but
        none is missing. When rows came last is not known at a start, and counted from then.
        """
        if self._at is None:
            return False
        at = self._at
        spans = [(at - moved, now - moved) for moved in self._moved.values()]
        return any(told < each <= lasts for told, lasts in spans for each in self._timeouts)
