"""All stored events in order, judged one by one against the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from tests.torture.verification.anomalies import Anomaly, Findings
from tests.torture.verification.boundaries import Boundaries
from tests.torture.verification.history import Seen, author
from tests.torture.verification.ledger import (
    ACCEPTED,
    NEVER,
    REFUSED,
    UNKNOWN,
    IdSet,
    WriteLedger,
    expectation_met,
    expectation_text,
)

_MASK = 2**64 - 1


@dataclass(slots=True)
class StreamState:
    """A stream as read so far: its last version, and the sum of its events' fingerprints."""

    version: int
    sum: int


class HistoryScan:
    """Judges each event at its place. Events come in the order in which the store lists them."""

    def __init__(
        self, run: int, ledger: WriteLedger, boundaries: Boundaries, findings: Findings
    ) -> None:
        self._run = run
        self._ledger = ledger
        self._boundaries = boundaries
        self._findings = findings
        self._ids = IdSet()
        self._recorded_at_us = 0
        self._latest_begin = -NEVER
        self._latest_row = 0
        self._row = -1
        self._range = (0, 0, 0)
        self.streams: dict[str, StreamState] = {}
        self.events = 0
        self.head = 0

    def passed(self, event: Seen) -> None:
        """Judge the next event."""
        self.events += 1
        position = event.position
        if position != self.head + 1:
            kind = Anomaly.POSITION_GAP if position > self.head else Anomaly.POSITION_REPEATED
            self._findings.add(kind, f"position {position} right after {self.head}")
        self.head = max(position, self.head)
        if event.recorded_at_us < self._recorded_at_us:
            self._findings.add(
                Anomaly.TIME_WENT_BACK,
                f"position {position}: {event.recorded_at_us} µs after {self._recorded_at_us} µs",
            )
        self._recorded_at_us = event.recorded_at_us
        before = self._advance(event)
        made_by = author(self._run, event.id)
        row = None if made_by is None else self._row_of(*made_by)
        if made_by is None or row is None:
            self._findings.add(Anomaly.PHANTOM, f"position {position}, stream {event.stream}")
        elif not self._ids.add(*made_by):
            self._findings.add(
                Anomaly.DOUBLED, f"position {position}: event {made_by[1]} of process {made_by[0]}"
            )
        else:
            self._judge(event, row, made_by[1], before)

    def finish(self) -> None:
        """Judge what is not there."""
        ledger = self._ledger
        for rows in ledger.rows_of_operations():
            present = sum(ledger.present[row] for row in rows)
            count = sum(ledger.count[row] for row in rows)
            if present == count or ledger.outcome[rows[0]] == REFUSED:
                continue
            example = f"{ledger.name(rows[0])}: {present} of {count}"
            if ledger.outcome[rows[0]] == ACCEPTED:
                self._findings.add(Anomaly.LOST, example)
            if present:
                self._findings.add(Anomaly.TORN, example)
        for stream in ledger.refused_new - self.streams.keys():
            self._findings.add(
                Anomaly.UNFOUNDED_REFUSAL, f"{stream} was said to exist, and it never did"
            )

    def unknown_present(self) -> int:
        """Return how many operations of unknown outcome did happen."""
        ledger = self._ledger
        return sum(
            1
            for rows in ledger.rows_of_operations()
            if ledger.outcome[rows[0]] == UNKNOWN and ledger.present[rows[0]]
        )

    def _row_of(self, process: int, number: int) -> int | None:
        """Look up a row; neighbours mostly belong to the same one."""
        owner, first, end = self._range
        if owner == process and first <= number < end:
            return self._row
        row = self._ledger.row_of(process, number)
        if row is not None:
            self._row = row
            first = self._ledger.first[row]
            self._range = (process, first, first + self._ledger.count[row])
        return row

    def _advance(self, event: Seen) -> int | None:
        """Move the stream on; return its version before, None for a new stream."""
        state = self.streams.get(event.stream)
        if state is None:
            state = self.streams[event.stream] = StreamState(-1, 0)
        before, version = state.version, event.version
        if version != before + 1:
            kind = Anomaly.VERSION_GAP if version > before else Anomaly.VERSION_REPEATED
            self._findings.add(
                kind, f"position {event.position}: {event.stream} {version} right after {before}"
            )
        state.version = max(version, before)
        state.sum = state.sum + event.fingerprint() & _MASK
        return None if before < 0 else before

    def _judge(self, event: Seen, row: int, number: int, before: int | None) -> None:
        ledger = self._ledger
        offset = number - ledger.first[row]
        if not ledger.present[row]:
            self._judge_first(event, row, before)
            if ledger.outcome[row] != ACCEPTED:
                # Where this one is, the others must follow.
                ledger.position[row] = event.position - offset
                ledger.version[row] = event.version - offset
        ledger.present[row] += 1
        placed = (
            event.position == ledger.position[row] + offset
            and event.version == ledger.version[row] + offset
        )
        if not placed or event.stream != ledger.streams[ledger.stream[row]]:
            told = ledger.outcome[row] == ACCEPTED
            self._findings.add(
                Anomaly.MISPLACED if told else Anomaly.SCATTERED,
                f"{ledger.name(row)}: event {number} is {event.stream} {event.version} at "
                f"{event.position}, not {ledger.version[row] + offset} at "
                f"{ledger.position[row] + offset}",
            )

    def _judge_first(self, event: Seen, row: int, before: int | None) -> None:
        """Judge an append at its first event."""
        ledger, name = self._ledger, self._ledger.name(row)
        if ledger.outcome[row] == REFUSED:
            self._findings.add(Anomaly.REFUSED_BUT_KEPT, f"{name} at {event.position}")
            return
        if ledger.completed[row] < self._latest_begin:
            self._findings.add(
                Anomaly.REAL_TIME_ORDER,
                f"{name} at {event.position} was answered before "
                f"{ledger.name(self._latest_row)} began, which has a lower position",
            )
        if ledger.invoked[row] > self._latest_begin:
            self._latest_begin, self._latest_row = ledger.invoked[row], row
        expected = ledger.expected[row]
        if not expectation_met(expected, before):
            self._findings.add(
                Anomaly.EXPECTATION_BROKEN,
                f"{name} at {event.position}: {expectation_text(expected)} was expected, "
                f"the stream was at {before}",
            )
        self._boundaries.judge(row, event.position, name)
