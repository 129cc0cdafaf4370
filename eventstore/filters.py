"""What a filter or a query asks of an event, in the one form that stores search by."""

from __future__ import annotations

from dataclasses import dataclass

from eventstore.conditions import Query
from eventstore.names import check_category, check_queried_type, check_stream_prefix, check_tag
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


def kept_filter(filter_: EventFilter) -> EventFilter:
    """Return a filter that is to be kept. Raises `InvalidRequest` for a name that no event can
    have: whoever waits for it would wait for ever, and nobody would say why.
    """
    checks = (
        (filter_.category, check_category),
        (filter_.type, check_queried_type),
        (filter_.stream_prefix, check_stream_prefix),
        (filter_.tag, check_tag),
    )
    for name, check in checks:
        if name is not None:
            check(name)
    return filter_


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
