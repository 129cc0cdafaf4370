"""Changes of a result that a product sends to topics, read back: rows, and when each was shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, TopicPartition

from benchmarks.disturbed.oracle import Key, Row, Rows
from kernel.errors import Unavailable

KEYS: Mapping[str, Sequence[str]] = {
    "totals": ("item",),
    "windows": ("item", "window_start"),
    "newest": ("item",),
}
VALUES: Mapping[str, Sequence[str]] = {
    "totals": ("n", "amount"),
    "windows": ("n", "amount"),
    "newest": ("number", "amount", "at"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultChange:
    """A row that came (`diff` 1) or went (-1) in a step of the computation, `step`.

    `at` is when the broker had it, seconds since 1970.
    """

    key: Key
    row: Row
    diff: int
    step: int
    at: float


def read_changes(bootstrap: str, topic: str, query: str) -> list[ResultChange]:
    """Return all changes of a topic with one partition, in its order."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "disturbed-reader"})
    place, found = TopicPartition(topic, 0, 0), list[ResultChange]()
    try:
        first, end = consumer.get_watermark_offsets(place, timeout=30)
        consumer.assign([place])
        read = first
        while read < end:
            messages = consumer.consume(10_000, timeout=10)
            if not messages:
                raise Unavailable(f"{topic} could not be read from offset {read} to {end}")
            for message in messages:
                told = json.loads(message.value())
                found.append(
                    ResultChange(
                        key=tuple(told[name] for name in KEYS[query]),
                        row=tuple(told[name] for name in VALUES[query]),
                        diff=told["diff"],
                        step=told["time"],
                        at=message.timestamp()[1] / 1_000,
                    )
                )
                read = message.offset() + 1
    finally:
        consumer.close()
    return found


def last_rows(changes: Iterable[ResultChange]) -> Rows:
    """Return the rows of a reader who keeps, of each key, what its last step says.

    That is what favours a product that sends changes a second time: they are no new rows.
    """
    steps: dict[Key, tuple[int, Row | None]] = {}
    for change in changes:
        step, row = steps.get(change.key, (-1, None))
        if change.step != step:
            row = None
        if change.diff > 0:
            row = change.row
        steps[change.key] = (change.step, row)
    return {key: row for key, (_, row) in steps.items() if row is not None}


def unbalanced(changes: Iterable[ResultChange], expected: Rows) -> int:
    """Return how many rows a reader who adds up the changes has too often, or too seldom."""
    sums: Counter[tuple[Key, Row]] = Counter()
    for change in changes:
        sums[change.key, change.row] += change.diff
    sums.subtract(expected.items())
    return sum(count != 0 for count in sums.values())


def shown(
    changes: Iterable[ResultChange], needed: Mapping[int, tuple[Key, int]], place: int
) -> dict[int, float]:
    """Return when a row showed the effect of each record first, by number.

    `needed` has the row's key and the least of its value number `place`, as `oracle.needed` says.
    """
    steps: dict[Key, list[tuple[int, float]]] = {}
    for change in changes:
        if change.diff > 0:
            own = steps.setdefault(change.key, [])
            if not own or own[-1][0] < change.row[place]:
                own.append((change.row[place], change.at))
    found: dict[int, float] = {}
    for record, (key, least) in needed.items():
        at = next((at for value, at in steps.get(key, ()) if value >= least), None)
        if at is not None:
            found[record] = at
    return found
