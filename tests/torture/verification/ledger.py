"""What was asked and answered: one row for each write of each operation, in plain arrays.

About 70 bytes for a write, however many events it has; and three bits for an event.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, assert_never

from eventstore.store import Expected, StreamAppended
from kernel.errors import InvalidRequest
from tests.torture.verification.anomalies import Anomaly, Findings
from tests.torture.verification.history import (
    VERSION_CONFLICT,
    Accepted,
    AppendOperation,
    RefusedAppend,
    Unknown,
    Write,
)

NEVER: Final = 2**63 - 1
ACCEPTED: Final = 0
REFUSED: Final = 1
UNKNOWN: Final = 2
_WORDS: Final[dict[object, int]] = {"any": -1, "no_stream": -2, "stream_exists": -3}


class IdSet:
    """A set of event ids (process, number), one bit each."""

    def __init__(self) -> None:
        self._bits: dict[int, bytearray] = {}

    def add(self, process: int, number: int) -> bool:
        """Add an id; return whether it is new."""
        bits = self._bits.get(process)
        if bits is None:
            bits = self._bits[process] = bytearray()
        index, bit = number >> 3, 1 << (number & 7)
        if index >= len(bits):
            bits.extend(bytes(max(index + 1 - len(bits), len(bits), 64)))
        if bits[index] & bit:
            return False
        bits[index] |= bit
        return True


@dataclass(slots=True)
class _Process:
    """First event numbers of a process's writes, ascending, and their rows."""

    firsts: array[int]
    rows: array[int]


class WriteLedger:
    """All writes of a history. Rows are numbered in the order of being added."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._processes: dict[int, _Process] = {}
        self._stream_numbers: dict[str, int] = {}
        self.streams: list[str] = []
        self.operations = [0, 0, 0]
        """Operations by outcome: accepted, refused, unknown."""
        self.stream = array("I")
        self.expected = array("q")
        self.first = array("q")
        self.count = array("I")
        self.invoked = array("q")
        self.completed = array("q")
        self.outcome = array("B")
        self.position = array("q")
        self.version = array("q")
        self.head_row = array("q")
        """The row of the operation's first write; the others of it follow there."""
        self.present = array("I")
        """Events of the row that the store has; counted while all events are read."""
        self.refused_new: set[str] = set()
        """Streams of which a single write was refused that wanted no stream."""

    def __len__(self) -> int:
        return len(self.stream)

    def add(self, operation: AppendOperation) -> int:
        """Enter an operation; return the row of its first write.

        Raises `InvalidRequest` when the history itself is malformed: numbers of a process must
        grow, and a stream occurs once in a request.
        """
        writes, outcome = operation.writes, operation.outcome
        answers: tuple[StreamAppended | None, ...] = (None,) * len(writes)
        match outcome:
            case Accepted(answers=given):
                code = ACCEPTED
                if len(given) == len(writes):
                    answers = given
                else:
                    self._wrong(writes[0], f"{len(given)} answers for {len(writes)} writes")
            case RefusedAppend(by=by):
                code = REFUSED
                if by == VERSION_CONFLICT and len(writes) == 1 and writes[0].expected == NO_STREAM:
                    self.refused_new.add(writes[0].stream)
            case Unknown():
                code = UNKNOWN
            case _:
                assert_never(outcome)
        self.operations[code] += 1
        head_row = len(self)
        for write, answer in zip(writes, answers, strict=True):
            self._add_write(operation, write, answer, code, head_row)
        return head_row

    def row_of(self, process: int, number: int) -> int | None:
        """Return the row that an event belongs to, None when nobody appended it."""
        writes = self._processes.get(process)
        if writes is None:
            return None
        index = bisect_right(writes.firsts, number) - 1
        if index < 0:
            return None
        row = writes.rows[index]
        return row if number < self.first[row] + self.count[row] else None

    def name(self, row: int) -> str:
        """Return a row in words, for examples."""
        first, count = self.first[row], self.count[row]
        return f"append to {self.streams[self.stream[row]]} of events {first}..{first + count - 1}"

    def rows_of_operations(self) -> Iterator[range]:
        """Yield the rows of each operation."""
        begin = 0
        while begin < len(self):
            end = begin + 1
            while end < len(self) and self.head_row[end] == begin:
                end += 1
            yield range(begin, end)
            begin = end

    def _add_write(
        self,
        operation: AppendOperation,
        write: Write,
        answer: StreamAppended | None,
        code: int,
        head_row: int,
    ) -> None:
        process = self._processes.setdefault(operation.process, _Process(array("q"), array("q")))
        if process.rows:
            last = process.rows[-1]
            if write.first < self.first[last] + self.count[last]:
                raise InvalidRequest(
                    f"process {operation.process} used event number {write.first} again",
                    remedy="Number the events of a process 0, 1, 2 … in the order of its requests.",
                )
        process.firsts.append(write.first)
        process.rows.append(len(self))
        number = self._stream_numbers.setdefault(write.stream, len(self.streams))
        if number == len(self.streams):
            self.streams.append(write.stream)
        if answer is not None:
            self._check_answer(write, answer)
        self.stream.append(number)
        self.expected.append(expectation_code(write.expected))
        self.first.append(write.first)
        self.count.append(write.count)
        self.invoked.append(operation.invoked_ns)
        self.completed.append(operation.completed_ns if code == ACCEPTED else NEVER)
        self.outcome.append(code)
        self.position.append(0 if answer is None else answer.first_position)
        self.version.append(0 if answer is None else answer.first_version)
        self.head_row.append(head_row)
        self.present.append(0)

    def _check_answer(self, write: Write, answer: StreamAppended) -> None:
        positions = answer.last_position - answer.first_position + 1
        versions = answer.last_version - answer.first_version + 1
        if answer.stream != write.stream or positions != write.count or versions != write.count:
            self._wrong(write, f"answered {answer}")

    def _wrong(self, write: Write, why: str) -> None:
        self._findings.add(
            Anomaly.WRONG_ANSWER, f"append of {write.count} events to {write.stream}: {why}"
        )


NO_STREAM: Final = "no_stream"


def expectation_code(expected: Expected) -> int:
    """Return an expected version as one number: itself, or a negative one for a word."""
    return expected if isinstance(expected, int) else _WORDS[expected]


def expectation_met(code: int, head: int | None) -> bool:
    """Return whether a stream at version `head` (None: absent) is what was expected."""
    if code >= 0:
        return head == code
    if code == _WORDS[NO_STREAM]:
        return head is None
    return code == _WORDS["any"] or head is not None


def expectation_text(code: int) -> str:
    """Return an expected version in the words of the API."""
    return next((str(word) for word, number in _WORDS.items() if number == code), str(code))
