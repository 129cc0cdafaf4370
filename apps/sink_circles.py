"""Whether what a projection's sink appends to the event store comes back to the projection."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kernel.errors import Conflict
from projections.sql.lineage import readers_of, readers_of_events, readers_of_source
from projections.sql.parse import ProjectionDecl, SourceDecl
from projections.sql.sinks import EVENT_TYPES, EventSink


def check_sink_circles(
    sources: Iterable[SourceDecl], projections: Iterable[ProjectionDecl]
) -> None:
    """Raise `Conflict` where events of a sink lead to the projection that has it, also through
    other projections and their sinks.
    """
    known, decls = [*sources], [*projections]
    categories = {d.name: d.sink.category for d in decls if isinstance(d.sink, EventSink)}
    fed = {category: _fed_by(category, known, decls) for category in categories.values()}
    for name, category in categories.items():
        reached: set[str] = set()
        waiting = {category}
        while waiting:
            new = set().union(*(fed[each] for each in waiting)) - reached
            reached |= new
            waiting = {categories[each] for each in new if each in categories}
        if name in reached:
            raise Conflict(
                f"projection {name} would read the events of {category}, which it makes: rows "
                "would go round",
                remedy="Give its sink a category that nothing leads from to it: "
                "sink = 'event:CATEGORY'.",
            )


def _fed_by(
    category: str, sources: Collection[SourceDecl], decls: Collection[ProjectionDecl]
) -> set[str]:
    """Return the projections that events of a category reach, directly or through others."""
    streams = {
        f"events.{category}",
        *(f"events.{category}.{each}" for each in EVENT_TYPES.values()),
    }
    found = {
        name for type_ in EVENT_TYPES.values() for name in readers_of_events(category, type_, decls)
    }
    for source in sources:
        if source.on in streams:
            found |= {*readers_of_source(source.name, decls)}
    while more := {name for each in found for name in readers_of(each, decls)} - found:
        found |= more
    return found
