"""Pathway's side: a process of its own environment, with its persistence, to be killed.

Its results are changes in topics; when the effect of a record could be read is the broker's time of
the first change that shows it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.disturbed.changes import ResultChange, last_rows, read_changes, shown, unbalanced
from benchmarks.disturbed.oracle import QUERIES, Rows, Seen
from benchmarks.disturbed.sending import Sent
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.peers.install import default_cache, environment
from kernel.errors import Unavailable

_DRIVER = Path(__file__).parents[1] / "peers" / "drive_disturbed.py"
_PLACES = {"totals": 0, "windows": 0, "newest": 2}
_FIRST_S, _QUIET_S = 300.0, 60.0
"""How long it may take to begin, and may say nothing new: a start on busy cores is in both."""


class ByPathway:
    """A process that runs the three queries over one topic, and the topics of their changes."""

    promise = (
        "at least once, as its package says of its free version: after a restart it goes on from "
        "its last snapshot, and may send changes again; its results here are changes in topics "
        "of Kafka, of which a reader makes the table (its Delta tables want a licence key)"
    )

    def __init__(
        self, bootstrap: str, topic: str, folder: Path, progress: Callable[[str], None]
    ) -> None:
        self._python = environment(default_cache(), "nexmark_pathway.txt", progress)
        self._bootstrap, self._topic, self._folder = bootstrap, topic, folder
        self._process: subprocess.Popen[bytes] | None = None
        self._spent = 0.0
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def start(self) -> None:
        """Start the process; returns, at the first time, when it has sent a change."""
        self._run()
        deadline = time.monotonic() + _FIRST_S
        while not any(self.changes().values()):
            self.cpu_s()
            if time.monotonic() > deadline:
                raise Unavailable("Pathway does not read: see pathway.log in its folder")
            time.sleep(0.5)

    def _run(self) -> None:
        command = [str(self._python), str(_DRIVER), self._bootstrap, self._topic]
        with (self._folder / "pathway.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, str(self._folder / "state")],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=os.environ | {"PATHWAY_TELEMETRY_SERVER": ""},
            )

    def kill(self) -> float:
        """End it by SIGKILL, and return the processor seconds that it took until then."""
        self._spent = self.cpu_s()
        self.stop()
        return self._spent

    def stop(self) -> None:
        """End it, if it runs; nothing is left for it to say good-bye to."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def cpu_s(self) -> float:
        """Return the processor seconds of its process, those before the kill among them."""
        if self._process is None:
            return self._spent
        if self._process.poll() is not None:
            said = (self._folder / "pathway.log").read_text(errors="replace").strip()[-2_000:]
            raise Unavailable(f"Pathway's process ended: {said}")
        return self._spent + cpu_seconds([self._process.pid])

    def settled(self, sent: Sent, timeout_s: float) -> bool:
        """Wait until it says what is expected, or nothing new for a while."""
        deadline = time.monotonic() + timeout_s
        count, since = -1, time.monotonic()
        while time.monotonic() < deadline:
            self.cpu_s()
            changes = self.changes()
            if all(last_rows(changes[query]) == sent.expected[query] for query in QUERIES):
                return True
            now = sum(map(len, changes.values()))
            if now != count:
                count, since = now, time.monotonic()
            elif count > 0 and time.monotonic() - since > _QUIET_S:
                return False
            time.sleep(1.0)
        return False

    def changes(self) -> dict[str, list[ResultChange]]:
        """Return all changes that it sent, by query."""
        return {
            query: read_changes(self._bootstrap, f"{self._topic}.{query}", query)
            for query in QUERIES
        }

    def rows(self) -> dict[str, Rows]:
        """Return the rows that a reader has who keeps the last change of each key."""
        changes = self.changes()
        return {query: last_rows(changes[query]) for query in QUERIES}

    def seen(self, sent: Sent) -> dict[str, Seen]:
        """Return when the effect of each record could be read, by query and number."""
        changes = self.changes()
        return {q: shown(changes[q], sent.needed[q], _PLACES[q]) for q in QUERIES}

    def figures(self, sent: Sent) -> dict[str, float]:
        """Return how many changes there were, and what a reader has wrong who adds them up."""
        found: dict[str, float] = {}
        for query, changes in self.changes().items():
            found[f"{query}.changes"] = float(len(changes))
            wrong = unbalanced(changes, sent.expected[query])
            found[f"{query}.rows_wrong_added_up"] = float(wrong)
        return found
