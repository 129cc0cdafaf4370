"""What can be wrong with a history, and the report that says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

EXAMPLES = 5
"""Examples kept of each anomaly; all are counted."""


class Anomaly(Enum):
    """One way in which a history breaks a promise. The value explains it."""

    LOST = "an acknowledged event is not in the store (P1)"
    DOUBLED = "an event id is in the store more than once (P1)"
    MISPLACED = "an event is not at the stream, version and position that its caller was told"
    PHANTOM = "the store has an event that nobody appended"
    REFUSED_BUT_KEPT = "an event of a refused append is in the store (P3)"
    TORN = "only a part of one request is in the store"
    SCATTERED = "events of one append do not follow each other"
    POSITION_GAP = "a position is missing (P2)"
    POSITION_REPEATED = "a position occurs twice, or after a greater one (P2)"
    VERSION_GAP = "a version of a stream is missing (P2)"
    VERSION_REPEATED = "a version of a stream occurs twice, or after a greater one (P2)"
    TIME_WENT_BACK = "recorded_at is earlier than that of the position before"
    REAL_TIME_ORDER = "an append that was answered before another began has the higher position"
    EXPECTATION_BROKEN = "an append was accepted although its stream was at another version"
    CONDITION_BROKEN = "an append was accepted although an event matched its condition"
    UNFOUNDED_REFUSAL = "an append was refused for something that never happened"
    WRONG_ANSWER = "an answer does not fit its request"
    READER_SKIPPED = "a tailing reader was not shown a position (P2)"
    READER_REPEATED = "a tailing reader was shown an event twice"
    READER_LATE = "a tailing reader was shown a new event at or below what it had seen (P2)"
    READER_DIFFERS = "a tailing reader was shown other events than are stored"
    READER_AHEAD = "a tailing reader was shown events that are not in the store"
    STREAM_DIFFERS = "reading a stream gives other events than reading all"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryReport:
    """The verdict on one history. `figures`: what was judged, by name."""

    anomalies: Mapping[Anomaly, int]
    examples: Mapping[Anomaly, tuple[str, ...]]
    figures: Mapping[str, int]

    @property
    def clean(self) -> bool:
        """Whether no promise was broken."""
        return not self.anomalies

    def document(self) -> dict[str, object]:
        """Return the report as JSON-like values."""
        return {
            "clean": self.clean,
            "figures": dict(self.figures),
            "anomalies": [
                {
                    "name": anomaly.name.lower(),
                    "meaning": anomaly.value,
                    "count": count,
                    "examples": list(self.examples[anomaly]),
                }
                for anomaly, count in self.anomalies.items()
            ],
        }


@dataclass(slots=True)
class Findings:
    """Collects anomalies: counts all, keeps the first few examples of each kind."""

    counts: Counter[Anomaly] = field(default_factory=Counter)
    examples: dict[Anomaly, list[str]] = field(default_factory=dict)

    def add(self, anomaly: Anomaly, example: str) -> None:
        """Note one occurrence."""
        self.counts[anomaly] += 1
        kept = self.examples.setdefault(anomaly, [])
        if len(kept) < EXAMPLES:
            kept.append(example)

    def report(self, figures: Mapping[str, int]) -> HistoryReport:
        """Return what was found, the most frequent kind first."""
        return HistoryReport(
            anomalies=dict(self.counts.most_common()),
            examples={kind: tuple(examples) for kind, examples in self.examples.items()},
            figures=dict(figures),
        )
