"""Notes of projections in the manifest, several in one commit.

A note is a commit like any other, of some milliseconds, and by name a row is seen with it. In a
round of many projections notes wait for each other, but none for long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from kernel.errors import Conflict, LeaseLost, PenstockError
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected

LONGEST_S = 0.15
"""So long a note waits for those behind it."""


class PendingNotes:
    """Writes notes at once, or in the block of `together` with those that follow. For one thread.

    A crash loses notes, never rows: the next run of a projection notes what its table has.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._waiting: list[tuple[Projected, bool]] = []
        self._since = 0.0
        self._together = False

    def add(self, done: Projected, *, again: bool) -> None:
        """Note how far a projection has come; see `Manifest.project_all`."""
        if any(each.name == done.name for each, _ in self._waiting):
            self.write()
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting.append((done, again))
        if not self._together:
            self.write()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let notes wait for each other in the block; at its end all are written."""
        self._together = True
        try:
            yield
        finally:
            self._together = False
            self.write()

    def write_due(self) -> bool:
        """Write all if one waits for long enough; say whether none is left."""
        if self._waiting and time.monotonic() - self._since >= LONGEST_S:
            self.write()
        return not self._waiting

    def write(self) -> None:
        """Write all. Those that storage does not take stay; raises as `Manifest.project_all`."""
        try:
            if self._waiting:
                self._manifest.project_all(self._waiting)
            self._waiting.clear()
        except (LeaseLost, Conflict):
            self._one_by_one()

    def _one_by_one(self) -> None:
        """Write those that can be, and drop the others: raises the error of the first of them."""
        failed: list[PenstockError] = []
        while self._waiting:
            done, again = self._waiting[0]
            try:
                self._manifest.project(done, again=again)
            except (LeaseLost, Conflict) as error:
                failed.append(error)
            self._waiting.pop(0)
        if failed:
            raise failed[0]
