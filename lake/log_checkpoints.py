"""Checkpoints of logs on this machine's disk, written behind the commits that they are due at.

    commit 48 | commit 49 | commit 50 …       every reader has each at once
                    └ a thread: checkpoint of version 49, what expired of the log goes

deltalake does this within the commit: thirty milliseconds where others take two, for which whoever
waits for the commit's rows waits, too. A checkpoint says nothing that the commits do not say. One
that a killed process, or an error, has left out is made up for by the next that is due.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from lake.storage import last_checkpoint

INTERVAL = "delta.checkpointInterval"
_CLEANED = "delta.enableExpiredLogCleanup"
_RESTS = 4.0
"""So many times as long as one has taken the next one waits. Tables that are made together have all
of theirs at the same time, and commits go on meanwhile."""
_LOOKS_S = 0.1
"""Seconds of a rest between two looks whether the process is to end."""

log = logging.getLogger("penstock.upkeep")


class _Checkpoints:
    """Writes them one after the other, in a thread that a process waits for before it ends.

    Of a table one waits at most, that of its newest version: where they take longer than commits
    do, tables have fewer of them.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._due: dict[str, int] = {}
        self._thread: threading.Thread | None = None
        self._rests_until = 0.0

    def write(self, place: str, version: int) -> None:
        with self._lock:
            self._due[place] = max(version, self._due.get(place, version))
            # One that was forked off has no thread of the process that it comes from.
            if self._thread is not None and self._thread.is_alive():
                return
            # No executor's: those are waited for before the main thread counts as ended.
            self._thread = threading.Thread(target=self._run, name="checkpoints", daemon=False)
            with suppress(RuntimeError):  # The interpreter ends.
                self._thread.start()

    def settle(self) -> None:
        while (thread := self._thread) is not None and thread.is_alive():
            thread.join()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            self._write(*found)

    def _next(self) -> tuple[str, int] | None:
        """Return what is due, after a rest; None where nothing is: the thread ends."""
        with self._lock:
            if not self._due:
                self._thread = None
                return None
        while (left := self._rests_until - time.monotonic()) > 0:
            if not threading.main_thread().is_alive():  # A process that ends is waited for.
                break
            time.sleep(min(left, _LOOKS_S))
        with self._lock:
            place = next(iter(self._due))
            return place, self._due.pop(place)

    def _write(self, place: str, version: int) -> None:
        began = time.monotonic()
        try:
            if last_checkpoint(place) >= version:
                return
            table = DeltaTable(place, version=version)
            table.create_checkpoint()
            if table.metadata().configuration.get(_CLEANED) != "false":
                table.cleanup_metadata()
        except (DeltaError, OSError, ValueError) as error:
            log.warning("the log of %s has no checkpoint of version %d: %s", place, version, error)
        now = time.monotonic()
        self._rests_until = now + min(1.0, _RESTS * (now - began))


_beside = _Checkpoints()


def is_due(version: int, interval: int) -> bool:
    """Say whether a checkpoint of a version is due: of the last of each so many."""
    return (version + 1) % interval == 0


def write_beside(place: str, version: int) -> None:
    """Have a checkpoint of a version written, and wait for nothing; a process ends behind it."""
    _beside.write(place, version)


def settle() -> None:
    """Wait until all that were asked for are written, or have failed."""
    _beside.settle()
