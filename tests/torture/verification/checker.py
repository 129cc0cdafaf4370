"""The judge: what was asked, answered, shown and stored, in that order, and then the verdict.

1. `operation` for every append, when its outcome is known; `reader` for every tailing reader.
2. `stored` for every event of the store, in the order of reading all, once 1 is complete.
3. `stream` for streams that were read by themselves.
4. `report`.

Histories hold no deletions of streams: versions and events are all to be there.
Memory: see `ledger`; a number for each stream and each distinct query item; no events.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.torture.verification.anomalies import Anomaly, Findings, HistoryReport
from tests.torture.verification.boundaries import Boundaries
from tests.torture.verification.history import (
    CONDITION_FAILED,
    AppendOperation,
    RefusedAppend,
    Seen,
)
from tests.torture.verification.ledger import WriteLedger
from tests.torture.verification.readers import ReaderComparison, ReaderWatch
from tests.torture.verification.scan import HistoryScan

_MASK = 2**64 - 1


class HistoryChecker:
    """Judges one history. `run` is the one that the ids were made with (`history.event_id`)."""

    def __init__(self, run: int) -> None:
        self._run = run
        self._findings = Findings()
        self._ledger = WriteLedger(self._findings)
        self._boundaries = Boundaries(self._findings)
        self._readers: list[ReaderWatch] = []
        self._scan: HistoryScan | None = None
        self._comparison: ReaderComparison | None = None
        self._streams_read = 0

    def operation(self, operation: AppendOperation) -> None:
        """Enter an append. Those of one process come in its order; processes in any."""
        row = self._ledger.add(operation)
        if operation.condition is None:
            return
        match operation.outcome:
            case RefusedAppend(by=by):
                if by == CONDITION_FAILED:
                    self._boundaries.add_refused(operation.condition)
            case _:
                self._boundaries.add(row, operation.condition)

    def reader(self, name: str, *, after: int = 0) -> ReaderWatch:
        """Enter a tailing reader that begins behind a position."""
        watch = ReaderWatch(name, after, self._run, self._findings)
        self._readers.append(watch)
        return watch

    def stored(self, events: Iterable[Seen]) -> None:
        """Judge stored events; call it again with what follows."""
        if self._scan is None or self._comparison is None:
            self._scan = HistoryScan(self._run, self._ledger, self._boundaries, self._findings)
            self._comparison = ReaderComparison(self._readers, self._findings)
        for event in events:
            self._scan.passed(event)
            self._boundaries.passed(event)
            self._comparison.passed(event)

    def streams(self) -> dict[str, int]:
        """Return all stored streams and how many events each has."""
        if self._scan is None:
            return {}
        return {name: state.version + 1 for name, state in self._scan.streams.items()}

    def stream(self, name: str, events: Iterable[Seen]) -> None:
        """Judge what reading one whole stream gave, forward."""
        self._streams_read += 1
        state = None if self._scan is None else self._scan.streams.get(name)
        last, total = -1, 0
        for event in events:
            if event.stream != name or event.version != last + 1:
                self._differs(name, f"{event.stream} {event.version} right after version {last}")
                return
            last = event.version
            total = total + event.fingerprint() & _MASK
        if state is None:
            if last >= 0:
                self._differs(name, "reading all has no event of it")
        elif last != state.version:
            self._differs(name, f"it ends at {last}, reading all ends at {state.version}")
        elif total != state.sum:
            self._differs(name, f"events up to version {last} are others")

    def report(self) -> HistoryReport:
        """Return the verdict. Call it once, at the end."""
        self.stored(())
        assert self._scan is not None
        assert self._comparison is not None
        self._scan.finish()
        self._boundaries.finish()
        self._comparison.finish()
        accepted, refused, unknown = self._ledger.operations
        return self._findings.report(
            {
                "appends": accepted + refused + unknown,
                "accepted": accepted,
                "refused": refused,
                "unknown": unknown,
                "unknown_but_done": self._scan.unknown_present(),
                "conditions_judged": self._boundaries.judged,
                "events": self._scan.events,
                "head": self._scan.head,
                "streams": len(self._scan.streams),
                "streams_read": self._streams_read,
                "readers": len(self._readers),
                "events_shown_to_readers": sum(reader.shown for reader in self._readers),
            }
        )

    def _differs(self, stream: str, why: str) -> None:
        self._findings.add(Anomaly.STREAM_DIFFERS, f"{stream}: {why}")
