"""Conditions of appends, judged against all events in the order of their positions.

For every distinct query item of the history the last position that matched it is enough: a
condition is broken when that is behind its `after` at the moment of the append.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from eventstore.conditions import Condition
from tests.torture.verification.anomalies import Anomaly, Findings
from tests.torture.verification.history import Seen


@dataclass(slots=True, eq=False)
class _Item:
    types: frozenset[str]
    tags: frozenset[str]
    last: int = 0


class Boundaries:
    """The conditions of a history's accepted, unknown and refused appends, by ledger row."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._items: dict[tuple[frozenset[str], frozenset[str]], _Item] = {}
        self._by_tag: dict[str, list[_Item]] = {}
        self._untagged: list[_Item] = []
        self._conditions: dict[int, tuple[int, tuple[_Item, ...]]] = {}
        self._refused: dict[tuple[_Item, ...], int] = {}
        self.judged = 0

    def add(self, row: int, condition: Condition) -> None:
        """Enter the condition of an append that may be in the store."""
        self._conditions[row] = (condition.after, self._interned(condition))

    def add_refused(self, condition: Condition) -> None:
        """Enter a condition for which an append was refused: something must match it."""
        key = self._interned(condition)
        self._refused[key] = max(self._refused.get(key, 0), condition.after)

    def judge(self, row: int, position: int, name: str) -> None:
        """Check the condition, if any, of an append whose first event is at `position`."""
        found = self._conditions.pop(row, None)
        if found is None:
            return
        after, items = found
        self.judged += 1
        for item in items:
            if item.last > after:
                self._findings.add(
                    Anomaly.CONDITION_BROKEN,
                    f"{name} at {position}, after {after}: position {item.last} matches "
                    f"types {sorted(item.types)} tags {sorted(item.tags)}",
                )
                return

    def passed(self, event: Seen) -> None:
        """Take note of the next event by position."""
        for item in self._candidates(event):
            if item.tags.issubset(event.tags) and _type_matches(item.types, event):
                item.last = event.position

    def finish(self) -> None:
        """Check that every refusal had a cause."""
        for items, after in self._refused.items():
            if all(item.last <= after for item in items):
                self._findings.add(
                    Anomaly.UNFOUNDED_REFUSAL,
                    f"a condition after {after} on tags {sorted(items[0].tags)}: nothing matches",
                )

    def _candidates(self, event: Seen) -> Iterator[_Item]:
        for tag in event.tags:
            yield from self._by_tag.get(tag, ())
        yield from self._untagged

    def _interned(self, condition: Condition) -> tuple[_Item, ...]:
        items = []
        for given in condition.query.items:
            key = frozenset(given.types), frozenset(given.tags)
            item = self._items.get(key)
            if item is None:
                item = self._items[key] = _Item(*key)
                # Under one of its tags only: an event that matches has that one too.
                home = self._by_tag.setdefault(min(key[1]), []) if key[1] else self._untagged
                home.append(item)
            items.append(item)
        return tuple(items)


def _type_matches(types: frozenset[str], event: Seen) -> bool:
    category = event.stream.partition("-")[0]
    return not types or event.type in types or f"{category}.{event.type}" in types
