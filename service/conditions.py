"""Queries and conditions in JSON: `{"query": [{"types", "tags"}], "after"}`, long or short."""

from __future__ import annotations

from typing import Final

from eventstore.conditions import Condition, Query, QueryItem
from eventstore.names import check_queried_type, check_tag
from kernel.errors import InvalidRequest
from kernel.positions import Position
from schemas.json_values import shown
from service.json_objects import known_object

_EXAMPLE: Final = 'Example: {"query": [{"types": ["enrolled"], "tags": ["course:7"]}], "after": 41}'
_LONG: Final = frozenset({"query", "after"})
_SHORT: Final = frozenset({"types", "tags", "after"})
_ITEM: Final = frozenset({"types", "tags"})


def condition_of(value: object, place: str = "$.condition") -> Condition:
    """Parse a condition; `{"types", "tags", "after"}` is short for a query of one item.

    Without `after` it looks at the whole store. Raises `InvalidRequest` with the place.
    """
    document = known_object(value, place, _LONG if _is_long(value) else _SHORT, _EXAMPLE)
    if "query" in document:
        query = query_of(document["query"], f"{place}.query")
    else:
        item = {name: document[name] for name in _ITEM if name in document}
        query = Query(items=(_item(item, place),))
    after = document.get("after", 0)
    if type(after) is not int or not 0 <= after < 2**63:
        raise InvalidRequest(
            f"{place}.after: {shown(after)} is no position",
            remedy="Send the head that came with the events you decided on, or 0.",
        )
    return Condition(query=query, after=Position(after))


def query_of(value: object, place: str = "$.query") -> Query:
    """Parse a query: a list of items, of which one must match. Raises `InvalidRequest`."""
    if not isinstance(value, list):
        raise InvalidRequest(f"{place}: expected a list of items", remedy=_EXAMPLE)
    items = tuple(_item(item, f"{place}[{index}]") for index, item in enumerate(value))
    return Query(items=items)


def _item(value: object, place: str) -> QueryItem:
    item = known_object(value, place, _ITEM, _EXAMPLE)
    return QueryItem(
        types=tuple(map(check_queried_type, _texts(item.get("types"), f"{place}.types"))),
        tags=tuple(map(check_tag, _texts(item.get("tags"), f"{place}.tags"))),
    )


def _texts(value: object, place: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(dict.fromkeys(value))
    raise InvalidRequest(f"{place}: expected a list of texts", remedy=_EXAMPLE)


def _is_long(value: object) -> bool:
    return isinstance(value, dict) and "query" in value
