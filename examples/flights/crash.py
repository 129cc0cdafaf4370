"""Kills the pipeline with -9 in the middle of an epoch, and shows what it did afterwards.

In the middle means: the manifest has bound the epoch to its offsets and has not committed it. An
epoch takes a fraction of a second, and the way from a look to a stop takes as long: so the pipeline
is stopped first, looked at while it stands still, and either killed or let go on.
"""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from kernel.errors import Unavailable
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound
from stack import control

_POLL_S = 0.01
_BETWEEN_STOPS_S = 0.05
"""Long enough for a pipeline that is let go on to get on with its epoch."""
_PATIENCE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A pipeline process that ended in mid-epoch, and the offsets that the epoch was bound to."""

    pid: int
    bound: Bound
    ready_after_s: float


class Killer(threading.Thread):
    """Waits for an epoch under way and kills the pipeline in it; then waits until it is back."""

    def __init__(self, workspace: Path, lake: Lake, *, pipeline_url: str) -> None:
        super().__init__(name="killer", daemon=True)
        self._workspace = workspace
        self._lake = lake
        self._health = f"{pipeline_url}/health/ready"
        self._found: Killed | Exception | None = None
        self._looks = 0
        self._hit = threading.Event()

    @property
    def started(self) -> bool:
        """Whether it was sent on its way."""
        return self.ident is not None

    def waits(self, seconds: float) -> bool:
        """Return whether it still looks for an epoch under way, after `seconds` at most."""
        return self.is_alive() and not self._hit.wait(seconds)

    def run(self) -> None:
        """Do it once; the outcome is what `result` returns."""
        try:
            self._found = self._kill()
        except Exception as error:  # handed to the thread that asks for the result
            self._found = error

    def result(self) -> Killed:
        """Wait for the end. Raises what went wrong."""
        self.join()
        if isinstance(self._found, Exception):
            raise self._found
        assert self._found is not None, "a thread that ended has an outcome"
        return self._found

    def _kill(self) -> Killed:
        manifest = Manifest(self._lake, Tables())
        limit = time.monotonic() + _PATIENCE_S
        while time.monotonic() < limit:
            pid = control.kill_part(self._workspace, "pipeline", signal.SIGSTOP)
            process = _stopped(pid)
            bound = manifest.unfinished()
            self._looks += 1
            # Not the first one: what a crash must not hurt has to be there.
            if process is not None and bound is not None and bound.epoch > 1:
                return self._killed(process, bound)
            control.kill_part(self._workspace, "pipeline", signal.SIGCONT)
            time.sleep(_BETWEEN_STOPS_S)
        last = manifest.last()
        raise Unavailable(
            f"the pipeline was stopped {self._looks:,} times, and never in an epoch: the last one "
            f"that it committed is {last.epoch if last else 'none'}",
            remedy="See its log: penstock logs pipeline",
        )

    def _killed(self, process: psutil.Process, bound: Bound) -> Killed:
        process.kill()
        self._hit.set()
        started = time.monotonic()
        psutil.wait_procs([process], timeout=_PATIENCE_S)
        self._until_ready()
        return Killed(pid=process.pid, bound=bound, ready_after_s=time.monotonic() - started)

    def _until_ready(self) -> None:
        limit = time.monotonic() + _PATIENCE_S
        while time.monotonic() < limit:
            try:
                if httpx.get(self._health, timeout=5).is_success:
                    return
            except httpx.TransportError:
                pass  # nobody listens yet
            time.sleep(0.1)
        raise Unavailable(
            f"the pipeline did not come back within {_PATIENCE_S:.0f} s",
            remedy="See its log: penstock logs pipeline",
        )


def finished_as_bound(lake: Lake, killed: Killed) -> bool:
    """Return whether the epoch was completed over exactly the offsets that it was bound to."""
    done = Manifest(lake, Tables()).at(Epoch(killed.bound.epoch))
    # An epoch of a lane that is read apart has that lane's topics alone.
    return all(done.end.get(topic) == places for topic, places in killed.bound.end.items())


def _stopped(pid: int) -> psutil.Process | None:
    """Return the process once it stands still, None if it ended by itself."""
    try:
        process = psutil.Process(pid)
        while process.status() != psutil.STATUS_STOPPED:
            time.sleep(_POLL_S)
    except psutil.NoSuchProcess:
        return None
    return process
