"""What a filter or a query asks of an event, in the one form that stores search by."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.conditions import Query
from eventstore.store import EventFilter

_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All of these must be true of an event; what is not given lets everything pass.

    `types` are alternatives, each `placed` (in every category) or `order.placed`.
    """

    category: str | None = None
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    stream_prefix: str | None = None

    @property
    def bare_types(self) -> tuple[str, ...]:
        """The types without their categories, each once."""
        return tuple(dict.fromkeys(name.rpartition(".")[2] for name in self.types))


def wanted_by_filter(filter_: EventFilter) -> tuple[Wanted, ...]:
    """Return a filter as one alternative, none for a filter that lets everything pass."""
    if filter_.everything:
        return ()
    return (
        Wanted(
            category=filter_.category,
            types=_given(filter_.type),
            tags=_given(filter_.tag),
            stream_prefix=filter_.stream_prefix or None,
        ),
    )


def wanted_by_query(query: Query) -> tuple[Wanted, ...]:
    """Return a query's items as alternatives."""
    return tuple(Wanted(types=item.types, tags=item.tags) for item in query.items)


def behind_prefix(prefix: str) -> str | None:
    """Return the first text, by code points, behind all that begin with `prefix`; None: none is.

    >>> behind_prefix("order-1")
    'order-2'
    """
    for length in range(len(prefix), 0, -1):
        code = ord(prefix[length - 1]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= _LAST_CHARACTER:
            return prefix[: length - 1] + chr(code)
    return None


def _given(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)
