"""The watchdog of the pipeline's loops: what stands still is said, and in the end started again.

Progress is what a loop itself passes (steps of an epoch, tables, chunks), and what a probe sees
from outside (tasks that Spark's executors end). A long epoch that gets on is no standstill.

The thread that looks takes no lock that a loop may hold, that of a log handler included: a loop
that stands still within such a lock would stop its watchdog as well.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from kernel.errors import FIX
from kernel.loops import Loop, Signs

LOOK_S = 1.0
EXIT_STANDSTILL = 70
"""The exit code of a process that the watchdog ended."""
_STOPPED_S = 5.0
"""No look for so long says that the process was stopped (SIGSTOP, a frozen container)."""
_KEPT_S = 86_400
_MOST_DOUBLINGS = 6
_LAST_S = 30
_SEIZED_S = 180
"""No look for so long, although the process runs: somebody keeps the interpreter for ever."""
_STDERR = 2
_SLOW = 10

log = logging.getLogger("penstock.watchdog")


Probe = Callable[[], Signs]


class Looping(Protocol):
    """Runs a loop in a thread of its own, which is called as the loop is."""

    loop: Loop

    def run(self, stop: threading.Event) -> None:
        """Run until `stop` is set."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A loop with its bound. `vital`: without it no rows move, so that the process ends with it."""

    loop: Loop
    bound_s: float
    vital: bool = False
    probe: Probe | None = None


def end_process(reason: str) -> None:
    """End this process at once, with the stacks of all threads in its log.

    Its supervisor starts it again. Epochs are guarded: it may end at any moment.
    """
    # What hangs here must not keep the process: this timer takes no lock of the interpreter.
    faulthandler.dump_traceback_later(_LAST_S, exit=True, file=_STDERR)
    os.write(_STDERR, f"{reason}: this process ends, to be started again\n".encode())
    faulthandler.dump_traceback(file=_STDERR, all_threads=True)
    os._exit(EXIT_STANDSTILL)


class Ends:
    """Counts on disk how often the process was ended for a loop at one and the same step.

    A step that takes longer than the bound would be ended and begun again for ever. The bound
    therefore doubles with each end, until such a step gets through. A day later it is forgotten.
    """

    def __init__(self, file: Path, *, now: Callable[[], float] = time.time) -> None:
        self._file = file
        self._now = now
        self._known = self._read()

    def before(self, loop: str, step: str) -> int:
        """Return how often the process was ended for a loop at this step."""
        known = self._known.get(loop)
        if known is None or known["step"] != step or self._now() - known["at"] > _KEPT_S:
            return 0
        return int(known["ends"])

    def add(self, loop: str, step: str) -> None:
        """Count an end. What cannot be written must not keep the process from ending."""
        ends = self.before(loop, step) + 1
        self._known[loop] = {"step": step, "ends": ends, "at": self._now()}
        with suppress(OSError):
            # Whoever reads it sees the old or the new, never half.
            fresh = self._file.with_name(f".{self._file.name}.new")
            fresh.write_text(json.dumps(self._known))
            fresh.replace(self._file)

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return found


class Watchdog:
    """Compares what each loop did last with its bound, once a second.

    Probes ask others (the broker, Spark), which may hang: they have a thread of their own.
    """

    def __init__(
        self,
        watched: Sequence[Watched],
        *,
        end_after_s: float,
        end: Callable[[str], None] = end_process,
        ends: Ends | None = None,
        now: Callable[[], float] = time.monotonic,
        seized_s: float = 0.0,
    ) -> None:
        """A vital loop that stands still for `end_after_s` ends the process; 0 stands for never.

        With `ends`, this time doubles with each end at the same step. Where the interpreter itself
        is kept from all threads for `seized_s`, the process ends as well; 0 stands for never.
        """
        self._seized_s = seized_s
        self._arms = end_after_s > 0 and seized_s > 0
        self._watched = watched
        self._end_after_s = end_after_s
        self._end = end
        self._ends = ends
        self._now = now
        self._looked = now()
        self._sayings: SimpleQueue[tuple[int, str]] = SimpleQueue()
        self._seen: dict[str, object] = {}
        self.still: dict[str, str] = {}
        """What stands still, by the name of the loop: since when, where, and what to do."""

    def run(self, stop: threading.Event) -> None:
        """Watch until `stop` is set."""
        threading.Thread(target=self._probe, args=(stop,), name="probes", daemon=True).start()
        threading.Thread(target=self._say, name="sayings", daemon=True).start()
        self._arm()
        while not stop.wait(LOOK_S):
            self.look()
            self._arm()
        if self._arms:
            faulthandler.cancel_dump_traceback_later()

    def _arm(self) -> None:
        """Have the process ended should this thread never run again.

        The timer needs no interpreter. Native code may keep that while it waits for somebody who
        waits for it in turn: then no thread of ours can say so, or end anything.
        """
        if self._arms:
            faulthandler.dump_traceback_later(self._seized_s, exit=True, file=_STDERR)

    def look(self) -> None:
        """Compare once."""
        gap = self._now() - self._looked
        self._looked += gap
        if gap > _STOPPED_S:
            for watched in self._watched:
                watched.loop.pass_over(gap)
        still = {}
        for watched in self._watched:
            name = watched.loop.name
            seconds, where = watched.loop.still()
            if seconds < watched.bound_s:
                continue
            reason = f"{name} has not moved on for {seconds:.0f} s, {where}"
            still[name] = f"{reason}{FIX}penstock restart pipeline"
            if name not in self.still:
                self._sayings.put((logging.ERROR, reason))
            if watched.vital:
                self._end_after(watched.loop, seconds, reason)
        for name in self.still.keys() - still.keys():
            self._sayings.put((logging.INFO, f"{name} moves on"))
        self.still = still

    def _end_after(self, loop: Loop, seconds: float, reason: str) -> None:
        """End the process for a loop that stood still for its time."""
        step = loop.step
        before = 0 if self._ends is None else self._ends.before(loop.name, step)
        if not 0 < self._end_after_s * 2 ** min(before, _MOST_DOUBLINGS) <= seconds:
            return
        if self._ends is not None:
            self._ends.add(loop.name, step)
        again = f" (ended {before} times before at this step)" if before else ""
        self._end(f"{reason}{again}")

    def _say(self) -> None:
        while True:
            level, said = self._sayings.get()
            log.log(level, "%s", said)

    def probe(self) -> None:
        """Ask once what the loops do not say themselves."""
        for watched in self._watched:
            name = watched.loop.name
            if watched.probe is None:
                continue
            try:
                signs = watched.probe()
            except Exception as error:
                # Who does not answer is named elsewhere. It is no progress either.
                log.debug("probe of %s: %s", name, error)
                continue
            watched.loop.waits(signs.waits)
            if name in self._seen and self._seen[name] != signs.progress:
                watched.loop.moved()
            self._seen[name] = signs.progress

    def _probe(self, stop: threading.Event) -> None:
        pause_s = max(LOOK_S, min(each.bound_s for each in self._watched) / 4)
        while not stop.wait(pause_s):
            self.probe()


def watchdog_of(
    *,
    vital: Mapping[Loop, Probe],
    others: Iterable[Loop],
    slow: Iterable[Loop],
    bound_s: float,
    end_after_s: float,
    ends: Ends,
) -> Watchdog:
    """Return the watchdog of a pipeline's loops, each of which moves on within `bound_s`.

    `slow` are those of which one step may take long, and which nothing waits for. A vital one that
    stands still for `end_after_s` ends the process, which `ends` counts.
    """
    watched = [
        *(Watched(loop=each, bound_s=bound_s, vital=True, probe=vital[each]) for each in vital),
        *(Watched(loop=each, bound_s=bound_s) for each in others),
        *(Watched(loop=each, bound_s=_SLOW * bound_s) for each in slow),
    ]
    return Watchdog(
        watched,
        end_after_s=end_after_s,
        ends=ends,
        seized_s=_SEIZED_S,
    )
