"""What each event changed in an entity's state: which field, from what, to what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from kernel.positions import Version
from schemas.records import RecordedEvent

MOST_EVENTS = 500
"""Of one explanation: earlier ones are asked for with the version before them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One value that is another one since. `field` is a JSON pointer into the state.

    `before` and `after` are JSON values in a list, which is empty where the field was not there.
    """

    field: str
    before: tuple[Any, ...]
    after: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedEvent:
    """An event and what it changed."""

    event: RecordedEvent
    changes: tuple[FieldChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The last events that led to a state, oldest first, and what each of them changed.

    `before` and `after` are the states before the first and behind the last one, as JSON values:
    the changes in their order lead from one to the other. `earlier` is the event before the first
    one; None where that cannot be read: there is none, or the stream's policy hides it.
    """

    stream: str
    before: Any
    after: Any
    events: tuple[ExplainedEvent, ...]
    earlier: Version | None

    @property
    def last(self) -> RecordedEvent:
        """Return the event whose state is explained."""
        return self.events[-1].event


def changed_fields(before: Any, after: Any, at: str = "") -> Iterator[FieldChange]:
    """Yield what differs between two JSON values, so that the changes can be made in this order.

    The fields of `before` come first. A list that became shorter loses its items from the end.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            place = f"{at}/{_escaped(str(name))}"
            yield from _of_part(before, after, name, place)
    elif isinstance(before, list) and isinstance(after, list):
        ours, theirs = dict(enumerate(before)), dict(enumerate(after))
        longer = range(len(after), len(before))
        for number in (*range(len(after)), *reversed(longer)):
            yield from _of_part(ours, theirs, number, f"{at}/{number}")
    elif not _same(before, after):
        yield FieldChange(field=at, before=(before,), after=(after,))


def _of_part(
    before: dict[Any, Any], after: dict[Any, Any], name: Any, place: str
) -> Iterator[FieldChange]:
    if name in before and name in after:
        yield from changed_fields(before[name], after[name], place)
    elif name in before:
        yield FieldChange(field=place, before=(before[name],), after=())
    else:
        yield FieldChange(field=place, before=(), after=(after[name],))


def _same(before: Any, after: Any) -> bool:
    """Compare two values as JSON has them: true is not 1, and 1 is not 1.0."""
    return orjson.dumps(before) == orjson.dumps(after)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
