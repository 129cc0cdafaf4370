"""What projections may read: the lake's typed tables and what is deployed, as a SQL catalog."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from kernel.errors import InvalidRequest, PenstockError
from lake.datasets import schema_of
from lake.layout import Lake
from lake.tables import Tables, earliest
from pipeline.history.shape import NOT_COLUMNS, HistoryOf, history_column
from pipeline.typed.columns import EVENT_COLUMNS, truncates_name
from pipeline.typed.topic_rows import TIMESTAMP
from pipeline.typed.topics import typed_topic
from projections.run.catalog import Deployment
from projections.run.watermark import StreamTerms
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.topics import TOPICS, log_of
from projections.sql.words.catalog import Column, Relation, category_of
from schemas.topic_records import TopicShape

LATENESS = timedelta(minutes=10)
"""How late rows may be where nothing says otherwise: the default of pipeline.lateness_seconds."""
HIDDEN = NOT_COLUMNS - {"committed_at"}
_UNKNOWN_INPUT = re.compile(r"there is no (log|table|table with versions) named ")
"""How the planner refuses an input that nothing has been written to yet."""


class LakeCatalog:
    """Answers the planner from typed tables.

    `typed` names those that exist; `fields` gives the columns of event types that are registered
    but did not occur yet, by `<category>.<type>`. `lateness` is that of inputs that declare none.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        deployment: Deployment,
        *,
        typed: Iterable[str],
        fields: Mapping[str, pa.Schema],
        lateness: timedelta = LATENESS,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._deployment = deployment
        self._typed = frozenset(typed)
        self._keys = deployment.keys()
        self._fields = fields
        self._topics = {f"{TOPICS}.{name}": shape for name, shape in deployment.topics.items()}
        self._lateness = lateness

    @property
    def declared(self) -> Mapping[str, ProjectionDecl]:
        """The statements of the projections that are deployed, by name."""
        return self._deployment.declared

    def declared_by(self, name: str) -> str | None:
        """Name the declaration that the rows of a topic's log were made by; another makes others.

        None for any other log: its rows stay as they came.
        """
        topic = self._topics.get(name)
        return None if topic is None else topic.fingerprint

    def members(self, name: str) -> list[str]:
        """Return the typed tables that make up a stream, existing ones only."""
        if f"typed/{name}" in self._typed:
            return [f"typed/{name}"]
        return sorted(t for t in self._typed if t.startswith(f"typed/{name}."))

    def stream(self, name: str) -> Relation | None:
        """Return a log by the name of a category, an event type or a captured table.

        Raises `InvalidRequest` for the beginning of such names.
        """
        self._refuse_beginning(name)
        columns: dict[str, str] = {}
        topic = self._topics.get(name)
        for schema in self._schemas(name):
            for item in schema:
                if item.name not in HIDDEN:
                    columns.setdefault(item.name, _spark_type(item.type))
        if not columns:
            return None
        event = name.startswith("events.")
        if event:
            for item in EVENT_COLUMNS:
                columns[item.name] = _spark_type(item.type)
        return Relation(
            name=name,
            columns=tuple(Column(name=n, type=t) for n, t in columns.items()),
            key=("event_id",) if event else (),
            event_time="occurred_at" if event else _time_of(topic),
            # Rows of a copy stay where a table is captured no more: its key is not known then.
            copied=None if event or topic is not None else self._keys.get(name, ()),
        )

    def _refuse_beginning(self, name: str) -> None:
        """Refuse what several tables begin with: their rows are no log, other than of a category's.

        Not as what is yet to come: nothing is ever written to it.
        """
        below = {t.removeprefix("typed/") for t in self._typed if t.startswith(f"typed/{name}.")}
        if below and not name.startswith("events.") and f"typed/{name}" not in self._typed:
            raise InvalidRequest(
                f"{name} is no log; logs whose names begin so are {', '.join(sorted(below)[:5])}",
                remedy=f"Read one of them: FROM STREAM {min(below)}.",
            )

    def terms(self, name: str) -> StreamTerms:
        """Return what counts as late in a stream, by the name by which a plan reads it."""
        declared = self._deployment.sources.get(name)
        on = name if declared is None else declared.on or log_of(declared) or name
        on = ".".join(on.split(".")[:2]) if on.startswith("events.") else on
        return StreamTerms(
            name=on,
            lateness=self._deployment.lateness(on, self._lateness),
            idle_timeout=self._deployment.idle_timeout(on),
        )

    def history(self, name: str) -> Relation | None:
        """Return a declared source, or a captured table by commit time."""
        history = self.history_of(name)
        relation = self.stream(history.typed.removeprefix("typed/")) if history else None
        if history is None or relation is None:
            return None
        columns = tuple(
            Column(name=history_column(c.name), type=c.type)
            for c in relation.columns
            if c.name != "committed_at"
        )
        return Relation(name=name, columns=columns, key=history.key, event_time="valid_from")

    def latest(self, name: str) -> Relation | None:
        """Return the rows that a declared source or a captured table has now.

        They are those versions of its history that are valid still.
        """
        history = self.history(name)
        if history is None:
            return None
        return replace(history, key=tuple(map(history_column, history.key)), event_time=None)

    def projection(self, name: str) -> Relation | None:
        """Return the table of a projection as it is stored; its key is not known from that."""
        table = self._tables.open(self._lake.path(f"projection/{name}"))
        if name not in self._deployment.projections or table is None:
            return None
        visible = (item for item in schema_of(table) if not item.name.startswith("_"))
        columns = tuple(Column(name=item.name, type=_spark_type(item.type)) for item in visible)
        return Relation(name=name, columns=columns, key=(), event_time=None)

    def names(self) -> Collection[str]:
        """Return the names of logs, of categories, and of what is declared."""
        logs = {each.removeprefix("typed/") for each in self._typed}
        logs |= {f"events.{each}" for each in self._fields}
        declared = {*self._deployment.sources, *self._deployment.declared}
        return logs | {category_of(each) for each in logs} | declared

    def history_of(self, name: str) -> HistoryOf | None:
        """Return how the history table of a relation is kept."""
        topic = self._topics.get(f"{TOPICS}.{name}")
        if topic is not None:
            return None if not topic.key else _kept_by_records(topic)
        declared = self._deployment.sources.get(name)
        on = declared.on if declared is not None else name
        if on is None or f"typed/{on}" not in self._typed or on not in self._keys:
            return None
        identity = self._keys[on]
        by_row = declared is not None and bool(declared.event_time or declared.key)
        key = declared.key if declared is not None and declared.key else identity
        source, _, table = on.partition(".")
        return HistoryOf(
            name=f"history/{name}",
            typed=f"typed/{on}",
            key=tuple(key),
            identity=identity,
            by_row=by_row,
            truncates=None if by_row else truncates_name(source),
            table=table,
        )

    def kept_by_commit_time(self, name: str) -> bool:
        """Return whether the versions of a relation are told apart by when they were committed."""
        declared = self._deployment.sources.get(name)
        return declared is None or not declared.event_time

    def begins(self, name: str) -> datetime | None:
        """Return when the versions of a captured table begin: with the first copy or change of it.

        None where none was captured yet.
        """
        history = self.history_of(name)
        table = None if history is None else self._tables.open(self._lake.path(history.typed))
        return None if table is None else earliest(table, "committed_at")

    def _schemas(self, name: str) -> list[pa.Schema]:
        found = [
            schema_of(table)
            for member in self.members(name)
            if (table := self._tables.open(self._lake.path(member))) is not None
        ]
        event = name.removeprefix("events.")
        if found or event != name:
            registered = [
                schema
                for subject, schema in sorted(self._fields.items())
                if subject == event or subject.startswith(f"{event}.")
            ]
            return found + registered
        return found


def _time_of(topic: TopicShape | None) -> str:
    """Return the column with the event time of a log that has no events of the store."""
    return "committed_at" if topic is None else topic.event_time or TIMESTAMP


def _kept_by_records(topic: TopicShape) -> HistoryOf:
    """Return how the versions of a topic's keys are kept: each record is one, or ends its key."""
    return HistoryOf(
        name=f"history/{topic.source}",
        typed=typed_topic(topic.source),
        key=topic.key,
        identity=topic.key,
        by_row=True,
        declaration=topic.fingerprint,
        records=True,
    )


def retyped(stored: pa.Schema, shape: pa.Schema) -> list[str]:
    """Name the columns whose type in SQL is another one than that of the stored column."""
    return [
        item.name
        for item in shape
        if item.name in stored.names
        and not pa.types.is_null(item.type)
        and _spark_type(item.type) != _spark_type(stored.field(item.name).type)
    ]


@lru_cache(maxsize=1_000)
def _spark_type(arrow: pa.DataType) -> str:
    return str(from_arrow_type(arrow).simpleString())


def waits_for_input(error: PenstockError) -> bool:
    """Say whether a query was refused only because nothing was written to an input yet."""
    return _UNKNOWN_INPUT.search(error.message) is not None
