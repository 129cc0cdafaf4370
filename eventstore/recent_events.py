"""Events that a group has placed but not committed yet, found by tag and type.

A condition is judged by the committed store and by these: the requests of one group see each
other in queue order. Looking at each pair of requests would take quadratic time under the lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from eventstore.conditions import Query, QueryItem


class RecentEvents:
    """An index over the events of one group. Add them in order of position."""

    def __init__(self) -> None:
        self.count = 0
        self._by: dict[tuple[str | None, str | None], list[tuple[int, frozenset[str]]]]
        self._by = defaultdict(list)

    def add(self, position: int, category: str, type_: str, tags: Iterable[str]) -> None:
        """Index one event."""
        self.count += 1
        entry = (position, frozenset(tags))
        for name in (None, type_, f"{category}.{type_}"):
            self._by[None, name].append(entry)
            for tag in entry[1]:
                self._by[tag, name].append(entry)

    def newest(self, query: Query, after: int) -> int | None:
        """Return the position of the newest event behind `after` that matches, if any."""
        found = [self._newest(item, after) for item in query.items]
        return max((position for position in found if position is not None), default=None)

    def _newest(self, item: QueryItem, after: int) -> int | None:
        newest = None
        wanted = frozenset(item.tags)
        for name in item.types or (None,):
            lists = [self._by.get((tag, name), ()) for tag in item.tags or (None,)]
            for position, tags in reversed(min(lists, key=len)):
                if position <= max(after, newest or 0):
                    break
                if wanted <= tags:
                    newest = position
                    break
        return newest
