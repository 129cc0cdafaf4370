"""A captured database that epochs follow into a lake, as every world of mirrored tables has one."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.lake.feeding import Epochs
from tests.support.services.waiting import LONGEST_PAUSE_S
from tests.support.sources.source_database import SourceDatabase


class FollowedDatabase(SourceDatabase):
    """Runs epochs until a state is reached. Who mixes it in has a `name` and `epochs`, too."""

    name: str
    epochs: Epochs

    def cut(self) -> int:
        """Return the source's cut."""
        last = self.epochs.ingest.last
        return 0 if last is None else last.cuts.get(self.name, 0)

    def catch_up(self) -> None:
        """Run epochs until everything that is committed now is folded."""
        mark = self.mark()
        self.run_until(lambda: self.cut() > mark, f"the cut is beyond {mark}")

    def run_until(self, reached: Callable[[], bool], what: str) -> None:
        """Run epochs until something is true."""
        end = time.monotonic() + 120
        while not reached():
            assert time.monotonic() < end, f"{what}: {self.standing()}"
            before = self.epochs.ingest.last
            made = self.epochs.run()
            if before is not None and made.end == before.end:
                time.sleep(LONGEST_PAUSE_S)  # Nothing has come: Connect needs the cores more.

    def standing(self) -> object:
        """Return what the source waits for, for messages."""
        return self.epochs.ingest.waiting_for()
