"""What a filter or a query asks of an event, in the one form that stores search by."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.conditions import Query
from eventstore.store import EventFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """All of these must be true of an event; what is not given lets everything pass.

    `types` are alternatives, each `placed` (in every category) or `order.placed`.
    """

    category: str | None = None
    types: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    stream: str | None = None
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
            stream=filter_.stream,
            stream_prefix=filter_.stream_prefix or None,
        ),
    )


def wanted_by_query(query: Query) -> tuple[Wanted, ...]:
    """Return a query's items as alternatives."""
    return tuple(Wanted(types=item.types, tags=item.tags) for item in query.items)


def _given(value: str | None) -> tuple[str, ...]:
    return () if value is None else (value,)
