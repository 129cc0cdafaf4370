"""What exists: relations by name, as the planner asks for them.

The pipeline answers from the log's schemas and the source's keys; `MemoryCatalog` from a document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kernel.errors import InvalidRequest, Misconfigured
from projections.sql.parse import SourceDecl


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and its type as Spark SQL text; an output's type is empty where not derivable."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Something to select from. `columns` are the visible ones: no hidden runner columns.

    `key` identifies a row of a table; a stream's is the key of the facts, if it has any.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    event_time: str | None


class Catalog(Protocol):
    """Looks relations up by dotted name. None: there is no such relation of that kind."""

    def stream(self, name: str) -> Relation | None:
        """Return a log: `events.flight`, `events.flight.departed`, `shop.public.orders`."""
        ...

    def history(self, name: str) -> Relation | None:
        """Return a table with versions in event time: `weather`, `demo.public.weather`."""
        ...

    def latest(self, name: str) -> Relation | None:
        """Return a table's newest rows, one for each key."""
        ...

    def projection(self, name: str) -> Relation | None:
        """Return the target of another projection."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCatalog:
    """A catalog of given relations."""

    streams: Mapping[str, Relation] = field(default_factory=dict)
    histories: Mapping[str, Relation] = field(default_factory=dict)
    latests: Mapping[str, Relation] = field(default_factory=dict)
    projections: Mapping[str, Relation] = field(default_factory=dict)

    def stream(self, name: str) -> Relation | None:
        """Return a given log."""
        return self.streams.get(name)

    def history(self, name: str) -> Relation | None:
        """Return a given table with versions."""
        return self.histories.get(name)

    def latest(self, name: str) -> Relation | None:
        """Return a given table."""
        return self.latests.get(name)

    def projection(self, name: str) -> Relation | None:
        """Return a given projection's target."""
        return self.projections.get(name)


class DeclaredCatalog:
    """The relations of another catalog, and those that `CREATE SOURCE` statements declare on them.

    `CREATE SOURCE weather ON demo.public.weather WITH (key = origin)` makes `weather` a stream, a
    history and a latest state with the columns of the captured table and the declared key. A
    declaration on `events.<category>` is another name for that log, and sets its lateness.
    """

    def __init__(self, under: Catalog, sources: Sequence[SourceDecl]) -> None:
        self._under = under
        self._sources = {source.name: source for source in sources}

    def stream(self, name: str) -> Relation | None:
        """Return a declared source's log, or one of the catalog beneath."""
        source = self._declared(name)
        if source is None or source.on is None:
            return self._under.stream(name)
        return _declare(source, self._under.stream(source.on))

    def history(self, name: str) -> Relation | None:
        """Return a declared source's versions, or those of the catalog beneath."""
        source = self._declared(name)
        if source is None or source.on is None:
            return self._under.history(name)
        return _declare(source, self._under.history(source.on) or self._under.latest(source.on))

    def latest(self, name: str) -> Relation | None:
        """Return a declared source's newest rows, or those of the catalog beneath."""
        source = self._declared(name)
        if source is None or source.on is None:
            return self._under.latest(name)
        return _declare(source, self._under.latest(source.on))

    def projection(self, name: str) -> Relation | None:
        """Return a projection of the catalog beneath."""
        return self._under.projection(name)

    def _declared(self, name: str) -> SourceDecl | None:
        source = self._sources.get(name)
        if source is not None and source.on is None:
            raise InvalidRequest(
                f"source {name} reads the external topic {source.topic!r}, which is not ingested",
                remedy="Publish the records as events and read STREAM events.<category>, or "
                "capture a table and declare CREATE SOURCE name ON <source>.<table>.",
            )
        return source


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


def catalog_from(document: Mapping[str, object]) -> MemoryCatalog:
    """Read a catalog document: kind -> name -> {columns: {name: type}, key: […], event_time}.

    Kinds are `streams`, `histories`, `latests`, `projections`. Raises `Misconfigured`.
    """
    kinds = ("streams", "histories", "latests", "projections")
    found: dict[str, dict[str, Relation]] = {kind: {} for kind in kinds}
    for kind, relations in document.items():
        if kind not in kinds or not isinstance(relations, Mapping):
            raise Misconfigured(f"catalog document: {kind!r} is not one of {', '.join(kinds)}")
        for name, body in relations.items():
            found[kind][str(name)] = _relation(str(name), body)
    return MemoryCatalog(**found)


def _relation(name: str, body: object) -> Relation:
    if not isinstance(body, Mapping) or not isinstance(body.get("columns"), Mapping):
        raise Misconfigured(f"catalog document: {name} must have columns, as {{name: type}}")
    event_time = body.get("event_time")
    return Relation(
        name=name,
        columns=tuple(Column(name=str(n), type=str(t)) for n, t in body["columns"].items()),
        key=tuple(str(part) for part in body.get("key", ())),
        event_time=None if event_time is None else str(event_time),
    )
