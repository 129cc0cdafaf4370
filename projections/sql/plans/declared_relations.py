"""Relations that statements declare: sources on what there is, and projections by their queries.

A projection that another one reads is planned to know its columns. So a circle of projections is
met while it is planned, and refused with its path.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from sqlglot import exp

from kernel.errors import InvalidRequest
from projections.sql.operators.shape import Plan
from projections.sql.plans.plan import plan
from projections.sql.statements.declarations import ProjectionDecl, SourceDecl
from projections.sql.statements.topics import (
    TOPICS,
    declared_history,
    declared_stream,
    log_of,
    shape_of,
)
from projections.sql.words.catalog import Catalog, Column, Relation
from projections.sql.words.collected_refusals import CIRCLE, UNREAD, collected, result_and_refusals
from projections.sql.words.places import offset_of


class DeclaredCatalog:
    """The relations of another catalog, and those that statements declare.

    `CREATE SOURCE weather ON demo.public.weather WITH (key = origin)` makes `weather` a stream, a
    history and a latest state with the columns of the captured table and the declared key. A
    declaration on `events.<category>` is another name for that log, and sets its lateness.
    """

    def __init__(
        self,
        under: Catalog,
        sources: Sequence[SourceDecl],
        projections: Sequence[ProjectionDecl] = (),
    ) -> None:
        self._under = under
        self._sources = {source.name: source for source in sources}
        self._projections = {decl.name: decl for decl in projections}
        self._planned: dict[str, Relation] = {}
        self._under_way: list[str] = []

    def stream(self, name: str) -> Relation | None:
        """Return a declared source's log, or one of the catalog beneath."""
        source = self._declared(name)
        if source is None:
            log = self._declared(name.removeprefix(f"{TOPICS}."))
            return _of_topic(log, self._under.stream(name))
        if source.on is None:
            found = self._under.stream(log_of(source) or name) or declared_stream(source)
            return _of_topic(source, found)
        return _declare(source, self._under.stream(source.on))

    def history(self, name: str) -> Relation | None:
        """Return a declared source's versions, or those of the catalog beneath."""
        source = self._declared(name)
        if source is None:
            return self._under.history(name)
        if source.on is None:
            return _of_topic(source, self._under.history(name) or declared_history(source))
        return _declare(source, self._under.history(source.on) or self._under.latest(source.on))

    def latest(self, name: str) -> Relation | None:
        """Return a declared source's newest rows, or those of the catalog beneath."""
        source = self._declared(name)
        if source is None:
            return self._under.latest(name)
        if source.on is None:
            declared = declared_history(source)
            latest = None if declared is None else replace(declared, event_time=None)
            return _of_topic(source, self._under.latest(name) or latest)
        return _declare(source, self._under.latest(source.on))

    def projection(self, name: str) -> Relation | None:
        """Return a declared projection, or one of the catalog beneath.

        Raises `InvalidRequest` for one whose query cannot be compiled, or reads itself in the end.
        """
        decl = self._projections.get(name)
        if decl is None:
            return self._under.projection(name)
        if name in self._under_way:
            raise self._circle(self._under_way[self._under_way.index(name) :])
        if name not in self._planned:
            self._under_way.append(name)
            try:
                self._planned[name] = self._relation(decl)
            finally:
                self._under_way.pop()
        return self._planned[name]

    def names(self) -> Collection[str]:
        """Return the names of what is declared, and those of the catalog beneath."""
        return {*self._sources, *self._projections, *self._under.names()}

    def _circle(self, names: Sequence[str]) -> InvalidRequest:
        """Make the error for a circle, the same one wherever it was entered."""
        first = names.index(min(names))
        circle = [*names[first:], *names[:first]]
        decl = self._projections[circle[0]]
        error = decl.script.refusal(
            f"projections read each other in a circle: {' -> '.join([*circle, circle[0]])}",
            at=_place_of(decl, [*circle, circle[0]][1]),
            fix="Let one of them read what the next one reads, in place of its result.",
        )
        error.fields[CIRCLE] = circle
        return error

    def _plan(self, decl: ProjectionDecl) -> Plan:
        """Plan a projection that is read. Where errors are collected, its own are not the reader's.

        Raises `InvalidRequest`.
        """
        outer = collected()
        if outer is None:
            return plan(decl, self)
        made, found = result_and_refusals(lambda: plan(decl, self))
        outer.guessed = outer.guessed or found.guessed
        for error in found.errors:
            if CIRCLE in error.fields:
                raise error
        if made is None:
            error = InvalidRequest(f"{decl.name} is refused")
            error.fields[UNREAD] = decl.name
            raise error
        return made

    def _relation(self, decl: ProjectionDecl) -> Relation:
        """Plan a projection. A type that only Spark knows is that of the stored table."""
        made, stored = self._plan(decl), self._under.projection(decl.name)
        known = {each.name: each.type for each in stored.columns} if stored is not None else {}
        columns = (
            Column(name=each.name, type=each.type or known.get(each.name, ""))
            for each in made.columns
        )
        return Relation(name=decl.name, columns=tuple(columns), key=made.key, event_time=None)

    def _declared(self, name: str) -> SourceDecl | None:
        return self._sources.get(name)


def _place_of(decl: ProjectionDecl, name: str) -> int:
    """Return where a query names a table."""
    tables = [each for each in decl.query.find_all(exp.Table) if each.name == name]
    return offset_of(tables[0], decl.offset) if tables else decl.offset


def _of_topic(source: SourceDecl | None, found: Relation | None) -> Relation | None:
    """Add what a source says of the records of its topic, where it says more than their columns."""
    if source is None or found is None:
        return found
    shape = shape_of(source)
    more = source.key or source.sequence or source.identity or source.deleted
    return replace(found, declaration=shape.fingerprint) if shape is not None and more else found


def _declare(source: SourceDecl, under: Relation | None) -> Relation | None:
    if under is None or source.on_events:
        return under
    known = {column.name.lower(): column.name for column in under.columns}
    wanted = [*source.key, *filter(None, [source.event_time])]
    for column in wanted:
        if column.lower() not in known:
            raise source.script.refusal(
                f"source {source.name}: {under.name} has no column {column}",
                at=source.offset,
                fix=f"Columns of {under.name}: {', '.join(known.values())}.",
            )
    return replace(
        under,
        name=source.name,
        key=tuple(known[column.lower()] for column in source.key) or under.key,
        event_time=known[source.event_time.lower()] if source.event_time else under.event_time,
    )
