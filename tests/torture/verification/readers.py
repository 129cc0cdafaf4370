"""Tailing readers: each must be shown every position behind its start once, in order."""

from __future__ import annotations

from tests.torture.verification.anomalies import Anomaly, Findings
from tests.torture.verification.history import Seen, author
from tests.torture.verification.ledger import IdSet

MARK_EVERY = 1_000
_MASK = 2**64 - 1


class ReaderWatch:
    """Watches one reader over all its connections.

    Content is compared by sums: of fingerprints, since the start, noted each `MARK_EVERY` positions
    and at the end; the sum over the stored events between the same positions must be equal.
    """

    def __init__(self, name: str, after: int, run: int, findings: Findings) -> None:
        self.name = name
        self.after = after
        self.last = after
        """Where the reader resumes."""
        self.shown = 0
        self.marks: list[tuple[int, int]] = []
        self._run = run
        self._findings = findings
        self._ids = IdSet()
        self._sum = 0
        self._whole = True

    def saw(self, event: Seen) -> None:
        """Take note of the next event that the reader was shown."""
        self.shown += 1
        made_by = author(self._run, event.id)
        new = made_by is None or self._ids.add(*made_by)
        position = event.position
        if position != self.last + 1 or not new:
            self._irregular(event, new)
        self.last = max(position, self.last)
        self._sum = self._sum + event.fingerprint() & _MASK
        if position % MARK_EVERY == 0:
            self._mark()

    def end(self) -> None:
        """The reader sees nothing more."""
        if not self.marks or self.marks[-1][0] != self.last:
            self._mark()

    def _mark(self) -> None:
        # Once something was skipped or repeated, sums say nothing any more.
        if self._whole and self.last > self.after:
            self.marks.append((self.last, self._sum))

    def _irregular(self, event: Seen, new: bool) -> None:
        position, last = event.position, self.last
        if not new:
            kind, what = Anomaly.READER_REPEATED, f"position {position} again, after {last}"
        elif position > last:
            kind, what = Anomaly.READER_SKIPPED, f"position {position} right after {last}"
        else:
            kind, what = Anomaly.READER_LATE, f"a new event at {position}, after {last}"
        self._findings.add(kind, f"{self.name}: {what}")
        self._whole = False


class ReaderComparison:
    """Compares what readers were shown with the stored events, read once in order."""

    def __init__(self, readers: list[ReaderWatch], findings: Findings) -> None:
        self._readers = readers
        self._findings = findings
        self._sum = 0
        self._head = 0
        self._at_start: dict[int, int] = {0: 0}
        self._starts = {reader.after for reader in readers}
        self._due: dict[int, list[tuple[ReaderWatch, int]]] = {}
        self._differs: set[ReaderWatch] = set()
        for reader in readers:
            reader.end()
            for position, shown in reader.marks:
                self._due.setdefault(position, []).append((reader, shown))

    def passed(self, event: Seen) -> None:
        """Take note of the next stored event."""
        position = self._head = event.position
        self._sum = self._sum + event.fingerprint() & _MASK
        if position in self._starts:
            self._at_start[position] = self._sum
        for reader, shown in self._due.pop(position, ()):
            stored = self._sum - self._at_start.get(reader.after, 0) & _MASK
            if stored != shown and reader not in self._differs:
                self._differs.add(reader)
                self._findings.add(
                    Anomaly.READER_DIFFERS,
                    f"{reader.name}: somewhere in the {MARK_EVERY} positions up to {position}",
                )

    def finish(self) -> None:
        """Check that no reader is ahead of what is stored."""
        for reader in self._readers:
            if reader.last > max(self._head, reader.after):
                self._findings.add(
                    Anomaly.READER_AHEAD,
                    f"{reader.name} was shown position {reader.last}, the head is {self._head}",
                )
