"""Writes what a whole run took: `pytest --record FILE`, which `make test ALL=1` passes.

A pytest plugin module. The file has the verdict, durations by folder, the slowest tests, and the
facts about machine and commit without which a duration means nothing.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

from benchmarks.machine import facts

SLOWEST = 40


@dataclass
class RunRecord:
    """Durations and outcomes of a run, taken from its reports."""

    to: Path
    root: Path
    machine: dict[str, object] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    outcomes: Counter[str] = field(default_factory=Counter)

    def pytest_sessionstart(self) -> None:
        """Note the machine before it is busy with the tests."""
        self.machine = facts(self.root)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test: a failed setup or teardown counts as an outcome of its own."""
        self.seconds[report.nodeid] += report.duration
        if report.when == "call" or report.failed:
            self.outcomes[report.outcome] += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the record."""
        self.to.parent.mkdir(parents=True, exist_ok=True)
        text = orjson.dumps(self.document(exitstatus), option=orjson.OPT_INDENT_2)
        self.to.write_bytes(text + b"\n")

    def document(self, exitstatus: int) -> dict[str, object]:
        """Return the record, with the folders in the order of their cost."""
        folders: defaultdict[str, float] = defaultdict(float)
        for name, seconds in self.seconds.items():
            folders[name.split("/")[1]] += seconds
        return {
            "what": "make test ALL=1",
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "passed": exitstatus == 0,
            "tests": len(self.seconds),
            "outcomes": dict(self.outcomes),
            "seconds": round(time.monotonic() - self.started, 1),
            "seconds_by_folder": dict(_dearest(folders)),
            "slowest": dict(_dearest(self.seconds)[:SLOWEST]),
            "machine": self.machine,
        }


def _dearest(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(((n, round(s, 1)) for n, s in seconds.items()), key=lambda one: -one[1])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption("--record", type=Path, metavar="FILE", help="write durations to FILE, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Record where that was asked for: once, also where workers run the tests."""
    to: Any = config.getoption("--record")
    if to is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunRecord(to=to, root=config.rootpath), "run-record")
