"""Conditions of an append: "nothing that matters to this decision has happened since I looked".

A query is a list of items, one of which must match; an item matches an event that has one of its
types and all of its tags (dynamic consistency boundaries, dcb.events).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernel.errors import InvalidRequest, PenstockError
from kernel.positions import Position

MAX_ITEMS = 16
MAX_ITEM_TYPES = 16
MAX_ITEM_TAGS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryItem:
    """Events of one of `types` (none: any type) that carry all of `tags`.

    A type is `placed`, in every category, or `order.placed`. At least one of both is given.
    """

    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.types or self.tags):
            raise InvalidRequest(
                "a query item has neither types nor tags",
                remedy='Name what matters to the decision, as {"tags": ["course:7"]}',
            )
        _bounded("types in a query item", len(self.types), MAX_ITEM_TYPES)
        _bounded("tags in a query item", len(self.tags), MAX_ITEM_TAGS)

    def matches(self, category: str, type_: str, tags: Iterable[str]) -> bool:
        """Return whether an event is one of these."""
        if self.types and type_ not in self.types and f"{category}.{type_}" not in self.types:
            return False
        return set(self.tags).issubset(tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Events that match any of `items`, of which there is at least one."""

    items: tuple[QueryItem, ...]

    def __post_init__(self) -> None:
        if not self.items:
            raise InvalidRequest("a query has no items")
        _bounded("items in a query", len(self.items), MAX_ITEMS)

    def matches(self, category: str, type_: str, tags: Iterable[str]) -> bool:
        """Return whether an event is one of these."""
        return any(item.matches(category, type_, tags) for item in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """An append is refused when an event behind position `after` matches `query`.

    `after` is the head that came with the events that the decision was made on; 0 stands for the
    beginning of the store.
    """

    query: Query
    after: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a condition matches up to `head`: the position of an event, None, or why that cannot be
    told. Found before the append lock is taken, so that only what is newer needs a look under it.
    """

    head: Position
    matched: int | PenstockError | None


def _bounded(what: str, found: int, at_most: int) -> None:
    if found > at_most:
        raise InvalidRequest(
            f"{found} {what}, at most {at_most} are allowed",
            remedy="Ask for fewer: tag events with what decisions depend on.",
        )
