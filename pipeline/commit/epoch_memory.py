"""Committed epochs, the last ones, in memory: an epoch is committed once, and never changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable

from pipeline.commit.manifest_rows import Committed
from pipeline.commit.round_gate import RoundGate
from pipeline.log.recent_rows import RecentRows

REMEMBERED = 64
"""So many epochs, the last that were read or made, are known without reading them again."""


class EpochMemory:
    """Remembers epochs of one lake, for all in a process who read its manifest."""

    def __init__(self) -> None:
        self.logged = RecentRows()
        """What the last epochs appended to logs of events; an epoch may not be committed yet."""
        self.rounds = RoundGate()
        """Between who makes the epochs and who derives from them."""
        self._known: OrderedDict[int, Committed] = OrderedDict()
        self._newest = -1
        self._news = threading.Event()
        self._lock = threading.Lock()

    def add(self, epochs: Iterable[Committed]) -> None:
        """Remember epochs; those that were asked for or made last stay."""
        with self._lock:
            for done in sorted(epochs, key=lambda each: each.epoch)[-REMEMBERED:]:
                self._known[done.epoch] = done
                self._known.move_to_end(done.epoch)
                if done.epoch > self._newest:
                    self._newest = done.epoch
                    self.rounds.committed(done.epoch)
                    self._news.set()
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def wait(self, timeout_s: float) -> None:
        """Return once a newer epoch was added than any before the last call, or time is over.

        For one thread: who waits here has taken note of what there is.
        """
        self._news.wait(timeout_s)
        self._news.clear()

    def get(self, epoch: int) -> Committed | None:
        """Return an epoch that is remembered."""
        with self._lock:
            return self._known.get(epoch)

    def all_of(self, epochs: Collection[int]) -> list[Committed] | None:
        """Return some epochs, in their order; None unless all of them are remembered."""
        if len(epochs) > REMEMBERED:
            return None
        with self._lock:
            found = [self._known[each] for each in epochs if each in self._known]
        return found if len(found) == len(epochs) else None

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._known.clear()
