"""When a silence has lasted for so long that an epoch has to say so.

Who is silent for the `idle_timeout` of its source is not waited for any more. That is judged by
epochs alone, so that whoever asks gets one answer; but while nothing comes there is no epoch. So
one without a row is made when a timeout ends, and then no other until something came.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pipeline.commit.manifest_rows import Committed
from pipeline.position.progress import Progress


class Silences:
    """Knows when rows came last, as far as that moves a watermark. For one thread at a time."""

    def __init__(self, timeouts: Iterable[timedelta] = ()) -> None:
        self._timeouts = sorted(set(timeouts))
        self._seen: Mapping[str, Mapping[str, int]] | None = None
        self._moved: datetime | None = None
        self._at: datetime | None = None

    def note(self, done: Committed) -> None:
        """Take note of an epoch that was committed: the newest."""
        if not self._timeouts:
            return
        seen = Progress.from_json(done.progress).watermarks.seen
        if seen != self._seen:
            self._seen, self._moved = seen, done.at
        self._at = done.at

    def due(self, now: datetime) -> bool:
        """Say whether a timeout has ended since the newest epoch: another one would say so.

        The moments up to which a source is read belong to epochs, so one that was noted at a start,
        and after which nothing came, is asked for once more.
        """
        if self._moved is None or self._at is None:
            return False
        told, lasts = self._at - self._moved, now - self._moved
        return any(told < timeout <= lasts for timeout in self._timeouts)
