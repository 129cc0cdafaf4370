"""Whether sinks get in each other's way: one that two projections have, or one whose events come
back to the projection that makes them. Asked of a statement, and of the query of a replay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kernel.errors import Conflict
from projections.sql.statements.declarations import ProjectionDecl, SourceDecl
from projections.sql.statements.lineage import readers_of, readers_of_events, readers_of_source
from projections.sql.words.sinks import EVENT_TYPES, EventSink

_KINDS = {"topic": "topic", "event": "category"}


def check_sinks_apart(projections: Iterable[ProjectionDecl]) -> None:
    """Raise `Conflict` for a sink of two projections."""
    writers: dict[str, str] = {}
    for decl in projections:
        if decl.sink is None:
            continue
        if writers.setdefault(decl.sink.target, decl.name) != decl.name:
            kind, _, name = decl.sink.target.partition(":")
            raise Conflict(
                f"{_KINDS[kind]} {name} is the sink of {writers[decl.sink.target]} and of "
                f"{decl.name}",
                remedy=f"Give each projection a {_KINDS[kind]} of its own.",
            )


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
