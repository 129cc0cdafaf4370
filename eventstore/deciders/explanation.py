"""What each event changed in an entity's state: which field, from what, to what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schemas.records import RecordedEvent

MOST_EVENTS = 500


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


def changed_fields(before: Any, after: Any, at: str = "") -> Iterator[FieldChange]:
    """Yield what differs between two JSON values, the fields of `before` first."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys([*before, *after]):
            place = f"{at}/{_escaped(str(name))}"
            yield from _of_part(before, after, name, place)
    elif isinstance(before, list) and isinstance(after, list):
        ours, theirs = dict(enumerate(before)), dict(enumerate(after))
        for number in range(max(len(before), len(after))):
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
    """Compare two values as JSON has them: true is not 1."""
    return isinstance(before, bool) == isinstance(after, bool) and bool(before == after)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
