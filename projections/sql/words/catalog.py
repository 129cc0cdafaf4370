"""What exists: relations by name, as the planner asks for them.

The pipeline answers from the log's schemas and the source's keys; `MemoryCatalog` from a document.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kernel.errors import Misconfigured

PLACE = {
    "kafka_partition": "INT",
    "kafka_offset": "BIGINT",
    "kafka_timestamp": "TIMESTAMP",
    "kafka_key": "BINARY",
    "event_time_given": "BOOLEAN",
    "ends_key": "BOOLEAN",
}
"""Columns that every record of a topic has beside the declared ones, with their types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column and its type as Spark SQL text; an output's type is empty where not derivable."""

    name: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """Something to select from. `columns` are the visible ones: no hidden runner columns.

    `key` identifies a row of a table; a stream's is the key of the facts, if it has any. `copied`
    is the key of a captured table, in the stream of its changes: rows of one copy share one place
    in the order of facts, and have different ones of these. None where no facts share a place.
    `declaration`: of a declared source, what its rows depend on that the rest does not tell.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    event_time: str | None
    copied: tuple[str, ...] | None = None
    declaration: str = ""


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

    def names(self) -> Collection[str]:
        """Return the names that there are, of whatever kind: one may be meant by a wrong one."""
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

    def names(self) -> Collection[str]:
        """Return the names of all that was given."""
        kinds = (self.streams, self.histories, self.latests, self.projections)
        return {name for each in kinds for name in each}


def category_of(log: str) -> str:
    """Return the category of a log of events of one type; any other name as it is."""
    return ".".join(log.split(".")[:2]) if log.startswith("events.") else log


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
