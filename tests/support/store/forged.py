"""Histories made by a store of twenty lines, true ones, to be forged by tests of the checker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from eventstore.conditions import Condition, Query, QueryItem
from eventstore.store import Expected, StreamAppended
from kernel.positions import Position, Version
from tests.torture.verification.anomalies import HistoryReport
from tests.torture.verification.checker import HistoryChecker
from tests.torture.verification.history import (
    CONDITION_FAILED,
    VERSION_CONFLICT,
    Accepted,
    AppendOperation,
    Outcome,
    RefusedAppend,
    Seen,
    Unknown,
    Write,
    event_id,
)

RUN = 0xC0FFEE
Known = Literal["answered", "unknown and done", "unknown and not done"]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One request. `after` None: without a condition. Times are before and after the commit."""

    process: int
    writes: tuple[tuple[str, Expected, int], ...]
    tag: str | None = None
    after: int | None = None
    known: Known = "answered"
    early: int = 0
    late: int = 0


@dataclass
class History:
    """What the checker is given; tests change it."""

    operations: list[AppendOperation] = field(default_factory=list)
    shown: dict[str, list[Seen]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    stored: list[Seen] = field(default_factory=list)
    streams: dict[str, list[Seen]] = field(default_factory=dict)

    def judged(self) -> HistoryReport:
        checker = HistoryChecker(RUN)
        for operation in self.operations:
            checker.operation(operation)
        for name, events in self.shown.items():
            reader = checker.reader(name, after=self.starts[name])
            for event in events:
                reader.saw(event)
        checker.stored(self.stored)
        for stream, events in self.streams.items():
            checker.stream(stream, events)
        return checker.report()

    def found(self) -> set[str]:
        return {anomaly.name for anomaly in self.judged().anomalies}


def happened(steps: list[Step], *, readers: tuple[int, ...] = (0,)) -> History:
    """Carry out steps one after the other; each reader starts behind a position."""
    history = History()
    heads: dict[str, int] = {}
    numbers: dict[int, int] = {}
    for moment, step in enumerate(steps):
        first = numbers.get(step.process, 0)
        writes = []
        for stream, expected, count in step.writes:
            writes.append(Write(stream=stream, expected=expected, first=first, count=count))
            first += count
        numbers[step.process] = first
        history.operations.append(
            AppendOperation(
                process=step.process,
                invoked_ns=10 * moment - step.early,
                completed_ns=10 * moment + 5 + step.late,
                writes=tuple(writes),
                condition=_condition(step),
                outcome=_outcome(step, tuple(writes), heads, history.stored, moment),
            )
        )
    head = len(history.stored)
    for start in readers:
        name = f"reader {len(history.shown)}"
        history.starts[name] = min(start, head)
        history.shown[name] = history.stored[history.starts[name] :]
    for event in history.stored:
        history.streams.setdefault(event.stream, []).append(event)
    return history


def _condition(step: Step) -> Condition | None:
    if step.after is None:
        return None
    item = QueryItem(tags=(step.tag,)) if step.tag else QueryItem(types=("happened",))
    return Condition(query=Query(items=(item,)), after=Position(step.after))


def _outcome(
    step: Step, writes: tuple[Write, ...], heads: dict[str, int], stored: list[Seen], moment: int
) -> Outcome:
    if step.known == "unknown and not done":
        return Unknown()
    if not all(_meets(write.expected, heads.get(write.stream)) for write in writes):
        return RefusedAppend(by=VERSION_CONFLICT)
    if step.after is not None and any(
        step.tag is None or step.tag in event.tags for event in stored[step.after :]
    ):
        return RefusedAppend(by=CONDITION_FAILED)
    answers = []
    for write in writes:
        version, position = heads.get(write.stream, -1) + 1, len(stored) + 1
        stored.extend(
            Seen(
                position=position + index,
                id=event_id(RUN, step.process, write.first + index).int,
                stream=write.stream,
                version=version + index,
                type="happened",
                tags=(step.tag,) if step.tag else (),
                recorded_at_us=moment,
            )
            for index in range(write.count)
        )
        heads[write.stream] = version + write.count - 1
        answers.append(
            StreamAppended(
                stream=write.stream,
                first_version=Version(version),
                last_version=Version(heads[write.stream]),
                first_position=Position(position),
                last_position=Position(len(stored)),
            )
        )
    return Accepted(answers=tuple(answers)) if step.known == "answered" else Unknown()


def _meets(expected: Expected, head: int | None) -> bool:
    if expected == "no_stream":
        return head is None
    if expected == "stream_exists":
        return head is not None
    return expected == "any" or expected == head
