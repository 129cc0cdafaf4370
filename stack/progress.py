"""Say how far a download is, from what has arrived on disk: files, megabytes, rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from stack.lock import Artifact

Report = Callable[[str], None]
"""Takes one line of progress."""

_EVERY_S = 1.0


def silent(line: str) -> None:
    """Report nothing."""


class DownloadProgress:
    """Watches the folder that Ivy downloads to and reports once a second what has moved."""

    def __init__(self, artifacts: Sequence[Artifact], folder: Path, report: Report) -> None:
        self.files = len(artifacts)
        self.total_bytes = sum(a.size_bytes for a in artifacts)
        self.folder = folder
        self.report = report
        self.started = self.reported = time.monotonic()
        self.said = self._arrived()
        self.before_bytes = self.said[1]

    def tick(self) -> None:
        """Report if it is time to."""
        if time.monotonic() - self.reported >= _EVERY_S:
            self.reported = time.monotonic()
            self._say()

    def done(self) -> None:
        """Report the last state."""
        self._say()

    def _say(self) -> None:
        files, size = arrived = self._arrived()
        if arrived == self.said:
            return
        self.said = arrived
        elapsed = max(time.monotonic() - self.started, 0.001)
        rate = (size - self.before_bytes) / 1e6 / elapsed
        self.report(
            f"jars: {min(files, self.files)}/{self.files} files,"
            f" {size / 1e6:.0f}/{self.total_bytes / 1e6:.0f} MB, {rate:.1f} MB/s"
        )

    def _arrived(self) -> tuple[int, int]:
        kinds = {".jar", ".gz", ".part"}
        found = [p for p in self.folder.glob("*/*/*s/*") if p.suffix in kinds]
        sizes = [_size(path) for path in found]
        return sum(p.suffix != ".part" for p in found), sum(sizes)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
