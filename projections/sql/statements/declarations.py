"""What statements declare: sources, and projections whose queries are not planned yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from sqlglot import exp

from projections.sql.statements.match_clause import MatchClause
from projections.sql.words.functions import WorkspaceFunction
from projections.sql.words.places import Script
from projections.sql.words.sinks import Sink
from projections.sql.words.triggers import Trigger, trigger_of

Called = tuple[WorkspaceFunction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDecl:
    """A `CREATE SOURCE` statement. Either `on` names what it refines, or `topic` is external.

    `columns` are (name, Spark type) of an external topic. `key`, `event_time`, `lateness`,
    `closed_after` and `idle_timeout` are empty or None where the statement leaves the defaults.
    """

    name: str
    on: str | None
    columns: tuple[tuple[str, str], ...]
    topic: str | None
    format: str | None
    key: tuple[str, ...]
    event_time: str | None
    lateness: timedelta | None
    closed_after: timedelta | None
    idle_timeout: timedelta | None
    sequence: tuple[str, ...]
    deleted: str | None
    identity: tuple[str, ...]
    text: str
    script: Script = field(repr=False, compare=False)
    offset: int = field(compare=False)

    @property
    def on_events(self) -> bool:
        """Whether it refines a category of the event store."""
        return self.on is not None and self.on.startswith("events.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectionDecl:
    """A `CREATE PROJECTION` statement; its query is parsed, not yet planned.

    `fingerprint` names what the rows depend on (name, key, query without comments, spaces and the
    case of keywords, and emit where it says which rows there are): freshness, sink and any other
    emit may change without a new generation.
    """

    name: str
    key: tuple[str, ...]
    freshness: timedelta
    emit: str
    sink: Sink | None
    query: exp.Expr = field(repr=False, compare=False)
    matches: tuple[MatchClause, ...] = field(repr=False, compare=False)
    functions: Called = field(repr=False)
    text: str
    fingerprint: str
    script: Script = field(repr=False, compare=False)
    offset: int = field(compare=False)
    key_at: int = field(compare=False)
    emit_at: int = field(compare=False)

    @property
    def when(self) -> str | None:
        """The condition of `emit = 'when …'` on the rows of the table; None for any other."""
        return self.emit[5:] if self.emit.lower().startswith("when ") else None

    @property
    def trigger(self) -> Trigger | None:
        """What bounds how often the table is written; None where only the freshness does."""
        return trigger_of(self.emit) if self.when is None else None

    @property
    def final(self) -> bool:
        """Whether rows are given out once the watermark has passed their end."""
        return self.emit == "final"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredScript:
    """Everything that one text declares, in its order."""

    sources: tuple[SourceDecl, ...]
    projections: tuple[ProjectionDecl, ...]
