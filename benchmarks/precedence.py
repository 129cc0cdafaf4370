"""What the service takes beside a busy pipeline, and while all but the write side stands still.

The pipeline is kept busy by the appends themselves: each event goes through Connect and Kafka into
its tables. Both take their turns on one stack: the candidate has `stack.background_niceness` as it
is by default, the baseline none. Before each, Kafka, Connect and the pipeline are stopped (SIGSTOP)
for as long as the service is loaded alone; what was appended meanwhile keeps them busy afterwards.
"""

from __future__ import annotations

import os
import signal
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from apps.settings import DEFAULTS
from benchmarks.append import CONNECTIONS, loaded, whole_stack
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.harness import Context, Figures
from kernel.errors import Unavailable
from stack.planning import BACKGROUND
from stack.workspace import Workspace

NAME = "precedence"
CONDITIONS = (
    "single appends over 64 connections, loader on the same cores, first while Kafka, Connect and "
    "the pipeline are stopped, then while these work at what was appended; each answer after the "
    "commit is on disk (fsync on, synchronous_commit on); gapless positions in commit order"
)
_SETTING = "stack.background_niceness"
_STOPPED = ("connect", "pipeline", "kafka")
_WARM_S, _BUSY_S = 5.0, 60.0
_BUSY_CORES = 0.5


def add_options(parser: ArgumentParser) -> None:
    """Add where its stack listens, and how long each load lasts."""
    group = parser.add_argument_group("precedence")
    group.add_argument("--precedence-ports", default="22300", help="the lowest port (22300)")
    # Connect counts as lost after six seconds, and begins anew.
    group.add_argument(
        "--precedence-niceness", type=int, default=_default(), help="of the candidate (the default)"
    )
    group.add_argument("--precedence-seconds", type=float, default=5.0, help="of each load (5)")


def run(context: Context) -> Figures:
    """Load a stack whose background steps back."""
    return _measured(context, context.options.precedence_niceness)


def BASELINE(context: Context) -> Figures:
    """Load a stack all of whose parts have the same priority."""
    return _measured(context, 0)


@dataclass(slots=True, kw_only=True)
class _Stack:
    """A whole stack, and how far its background steps back just now."""

    service: tuple[str, str]
    processes: dict[str, int]
    niceness: int

    def step_back(self, niceness: int) -> None:
        """Give the background another niceness, as if it had started with that."""
        by, self.niceness = niceness - self.niceness, niceness
        for name in BACKGROUND:
            for process in _tree(self.processes[name]):
                # Linux has a niceness for each thread; new ones get that of their parent.
                for thread in process.threads():
                    now = os.getpriority(os.PRIO_PROCESS, thread.id)
                    os.setpriority(os.PRIO_PROCESS, thread.id, now + by)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop all but the write side."""
        try:
            self._signal(signal.SIGSTOP)
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for name in _STOPPED:
            for process in _tree(self.processes[name]):
                process.send_signal(number)

    def background_s(self) -> float:
        """Return the seconds of processors that the parts took which may be stopped."""
        return cpu_seconds([self.processes[name] for name in _STOPPED])

    def wait_until_busy(self) -> None:
        """Wait until these parts work at what was appended."""
        deadline = time.monotonic() + _BUSY_S
        while time.monotonic() < deadline:
            before, began = self.background_s(), time.monotonic()
            time.sleep(1.0)
            if self.background_s() - before > _BUSY_CORES * (time.monotonic() - began):
                return
        raise Unavailable("the pipeline does not work at what was appended")


@contextmanager
def _stack(context: Context) -> Iterator[_Stack]:
    with whole_stack(context.folder, context.options.precedence_ports) as (path, service):
        workspace = Workspace.at(path)
        found = {name: workspace.pid_of(name) for name in _STOPPED}
        stack = _Stack(
            service=service,
            processes={name: pid for name, pid in found.items() if pid is not None},
            niceness=_default(),
        )
        # Tables are made by the first events, and what is compiled by running is.
        loaded(service, connections=CONNECTIONS, events=1, seconds=_WARM_S)
        yield stack


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _default() -> int:
    niceness = DEFAULTS[_SETTING]
    assert isinstance(niceness, int)
    return niceness


def _measured(context: Context, niceness: int) -> Figures:
    stack = context.once("stack", lambda: _stack(context))
    seconds = context.options.precedence_seconds
    stack.step_back(niceness)
    with stack.stopped():
        alone = loaded(stack.service, connections=CONNECTIONS, events=1, seconds=seconds)
    stack.wait_until_busy()
    before, began = stack.background_s(), time.monotonic()
    beside = loaded(stack.service, connections=CONNECTIONS, events=1, seconds=seconds)
    background = (stack.background_s() - before) / (time.monotonic() - began)
    return {
        "beside_appends_per_s": beside["requests_per_s"],
        "beside_p50_ms": beside["p50_ms"],
        "beside_p95_ms": beside["p95_ms"],
        "background_cores": background,
        "alone_appends_per_s": alone["requests_per_s"],
        "alone_p50_ms": alone["p50_ms"],
        "alone_p95_ms": alone["p95_ms"],
        "kept_percent": 100 * beside["requests_per_s"] / alone["requests_per_s"],
    }
