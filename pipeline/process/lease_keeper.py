"""The pipeline's part in the lease of its lake: it stands by, works while it holds it, and ends.

A process that starts anew in a workspace is known to be the successor of the one before, which is
dead: it holds the file lock of the workspace's state folder, and goes on at once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from kernel.errors import LeaseLost, cause_and_fix
from lake.layout import Lake
from lake.writer_lease import WriterLease
from pipeline.process.health import STANDBY

LEASE = "pipeline"
"""The one lease there is: all lanes of a lake are one pipeline's."""
EXIT_LEASE_LOST = 75
"""The exit code of a process that another pipeline took the lake from."""
_LOOK_S = 1.0
_BEATS = 3
"""So many times within its time a lease is renewed."""

log = logging.getLogger("penstock.lease")


@contextmanager
def holding(state_dir: Path) -> Iterator[str]:
    """Yield who this process is; of two at once in one workspace the later one is somebody else."""
    state_dir.mkdir(parents=True, exist_ok=True)
    # Open as long as the process lives, however it ends: that is what the lock says.
    with (state_dir / "pipeline.holder").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            own = _known(file)
        except BlockingIOError:
            own = uuid.uuid4().hex
        yield own


def _known(file: TextIO) -> str:
    file.seek(0)
    known = file.read().strip()
    if not known:
        known = uuid.uuid4().hex
        file.write(known)
        file.flush()
    return known


def end_process(reason: str) -> None:
    """End this process at once: another one writes the lake. Its supervisor starts it anew."""
    log.error("%s: this process ends, to stand by", reason)
    logging.shutdown()
    os._exit(EXIT_LEASE_LOST)


class LeaseKeeper:
    """Waits for a lease, and keeps it; whoever loses it ends."""

    def __init__(
        self, lease: WriterLease, *, ttl_s: float, end: Callable[[str], None] = end_process
    ) -> None:
        """The lease is renewed three times in `ttl_s`; `end` is called when it is lost."""
        self._lease = lease
        self._every_s = ttl_s / _BEATS
        self._end = end

    def wait(self, stop: threading.Event, waits: Callable[[str, str], None]) -> bool:
        """Return True once the lease is held; False when `stop` is set before that.

        `waits` is told a state, and who holds the lease or why that cannot be seen.
        """
        while not stop.is_set():
            try:
                other = self._lease.take()
            except Exception as error:
                # Perhaps nobody writes: that is no standing by.
                waits("restarting", cause_and_fix(error, most=800))
            else:
                if other is None:
                    log.info("holds the lake: lease %s", self._lease.number)
                    return True
                waits(STANDBY, f"{other.place} writes this lake (lease {other.number})")
            stop.wait(_LOOK_S)
        return False

    def run(self, stop: threading.Event) -> None:
        """Say that the holder lives until `stop` is set; end the process when the lease is lost."""
        due = time.monotonic() + self._every_s
        while not stop.wait(min(_LOOK_S, self._every_s)):
            # After a stop of the whole process it is long due: nothing is said before the look.
            if time.monotonic() < due:
                continue
            due = time.monotonic() + self._every_s
            try:
                self._lease.keep()
            except LeaseLost as lost:
                self._end(lost.message)
                return
            except Exception as error:
                # Whatever a query of the ledger raises: this thread ends with the process alone.
                # Whoever cannot see the lake does not take it either; commits fail, or are guarded.
                log.warning("the lease is not renewed: %s", error)

    def release(self) -> None:
        """Give the lease back, as far as the lake can be reached."""
        try:
            self._lease.release()
        except Exception as error:
            log.warning("the lease is not given back: %s", error)


def lease_keeper(lake: Lake, holder: str, *, ttl_s: float) -> LeaseKeeper:
    """Return the keeper of a lake's lease, which holds for `ttl_s` when nobody renews it."""
    lease = WriterLease(lake, LEASE, holder=holder, place=socket.gethostname(), ttl_s=ttl_s)
    return LeaseKeeper(lease, ttl_s=ttl_s)
