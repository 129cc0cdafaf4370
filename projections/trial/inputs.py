"""What the inputs of a test hold: the rows that came, as the log would have them.

An event gets a position in the order in which the test gives it, and an id unless it names one: the
same id again is a duplicate, which is dropped as ingest drops it. Whether a row came later than its
source's lateness is decided once, by what was given before it, as if each row came by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pyarrow as pa

from kernel.clock import UNIX_EPOCH, micros
from lake.table_columns import UTC_MICROS
from pipeline.typed.columns import EVENT_COLUMNS
from projections.run.database import arrow_type
from projections.sql.operators.shape import INGESTED_AT, InputKind
from projections.sql.operators.tree import Scan
from projections.sql.statements.declarations import SourceDecl
from projections.sql.words.catalog import Column, Relation, category_of
from projections.sql.words.places import Script, nearest
from projections.trial.literals import value_of
from projections.trial.statements import GivenRows, InputDecl

Row = dict[str, object]
COMMITTED_AT = "committed_at"
_SPARK_TYPES = {pa.string(): "STRING", pa.int64(): "BIGINT", UTC_MICROS: "TIMESTAMP"}
_OF_EVENTS = tuple(Column(name=c.name, type=_SPARK_TYPES[c.type]) for c in EVENT_COLUMNS)
_COMMITTED = Column(name=COMMITTED_AT, type="TIMESTAMP")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFact:
    """One row that came. `place` is its place in the order of its source.

    It was ingested when the clock, the latest time that was given so far, stood at `ingested_at`.
    """

    input: str
    values: Row
    time: datetime
    place: int
    late: bool
    ingested_at: datetime
    deleted: bool = False

    @property
    def operation(self) -> str:
        """What a change did: a row that is given is an update, whether or not there was one."""
        return "d" if self.deleted else "u"

    @property
    def of_events(self) -> bool:
        """Whether it is an event, not a change of a table."""
        return self.input.startswith("events.")


class GivenCatalog:
    """The relations that the inputs of a test file make; see `words.catalog.Catalog`."""

    def __init__(self, inputs: Sequence[InputDecl]) -> None:
        self._inputs = {each.name: each for each in inputs}

    def members(self, name: str) -> list[str]:
        """Return the inputs that make up a stream."""
        below = f"{name}." if name.startswith("events.") else None
        return [n for n in self._inputs if n == name or (below and n.startswith(below))]

    def stream(self, name: str) -> Relation | None:
        """Return a log by the name of a category, an event type or a captured table."""
        columns: dict[str, Column] = {}
        for member in self.members(name):
            for column in columns_of(self._inputs[member]):
                columns.setdefault(column.name, column)
        if not columns:
            return None
        events, found = name.startswith("events."), self._inputs.get(name)
        return Relation(
            name=name,
            columns=tuple(columns.values()),
            key=("event_id",) if events else (),
            event_time="occurred_at" if events else COMMITTED_AT,
            copied=None if events or found is None else found.key,
        )

    def history(self, name: str) -> Relation | None:
        """Return a captured table's versions by commit time."""
        found = self._inputs.get(name)
        if found is None or found.events:
            return None
        return Relation(name=name, columns=found.columns, key=found.key, event_time="valid_from")

    def latest(self, name: str) -> Relation | None:
        """Return a captured table as it is now."""
        found = self.history(name)
        return None if found is None else replace(found, event_time=None)

    def projection(self, name: str) -> Relation | None:
        """Know no projection that is not declared beside the test."""
        return None

    def names(self) -> Collection[str]:
        """Return the names of the inputs, and of the categories of those that are events."""
        return {*self._inputs, *(category_of(each) for each in self._inputs)}


def columns_of(given: InputDecl) -> tuple[Column, ...]:
    """Return an input's columns as a stream, with those that every row of its kind has."""
    return (*given.columns, *(_OF_EVENTS if given.events else (_COMMITTED,)))


@dataclass(slots=True, kw_only=True)
class Arrivals:
    """Turns given rows into facts, one after the other."""

    script: Script
    holdings: Holdings
    lateness: timedelta
    _seen: dict[str, datetime] = field(default_factory=dict)
    _ids: dict[str, Row] = field(default_factory=dict)
    _clock: datetime | None = None
    _came: int = 0
    _versions: dict[str, int] = field(default_factory=dict)

    def facts(self, given: GivenRows) -> list[TrialFact]:
        """Return the facts that given rows are; duplicates are none."""
        decl = self.holdings.inputs[given.name]
        known = {each.name.lower(): each for each in columns_of(decl)}
        columns = []
        for name in given.columns:
            if name.lower() not in known:
                raise self.script.refusal(
                    f"{given.name} has no column {name}{nearest(name, known)}",
                    at=given.at,
                    fix="Declare it in INPUT, or name another.",
                )
            columns.append(known[name.lower()])
        facts = []
        for literals in given.values:
            row: Row = {
                column.name: value_of(literal, column.type, self.script)
                for column, literal in zip(columns, literals, strict=True)
            }
            made = self._event(decl, row, literals[0].at)
            if made is not None:
                facts.append(self._fact(decl, made, literals[0].at, deleted=given.deleted))
        return facts

    def _event(self, decl: InputDecl, row: Row, at: int) -> Row | None:
        """Give an event what the store gives it; None for one that is there already."""
        if not decl.events:
            return row
        event_id = row.get("event_id")
        if event_id is not None:
            before = self._ids.setdefault(str(event_id), row)
            if before is not row and before == row:
                return None
            if before is not row:
                raise self.script.refusal(
                    f"event_id {event_id!r} was given before, with other values",
                    at=at,
                    fix="Repeat an id only for the same event: it is a duplicate then.",
                )
        return row

    def _fact(self, decl: InputDecl, row: Row, at: int, *, deleted: bool) -> TrialFact:
        self._came += 1
        time = self._time(decl, row, at)
        name = ".".join(decl.name.split(".")[:2]) if decl.events else decl.name
        mark = self._seen.get(name)
        late = mark is not None and time < mark - self._closed_after(name)
        self._seen[name] = time if mark is None else max(mark, time)
        self._clock = time if self._clock is None else max(self._clock, time)
        if decl.events:
            number = self._came
            _, category, kind = decl.name.split(".", 2)
            stream = str(row.get("stream") or f"{category}-{number}")
            version = self._versions.get(stream, 0)
            self._versions[stream] = version + 1
            row = {
                "event_id": f"event-{number}",
                "entity_id": stream.partition("-")[2],
                "type": kind,
                "version": version,
                "position": number,
                "occurred_at": time,
                "recorded_at": self._clock,
                **row,
                "stream": stream,
            }
            place = _place(row)
            return TrialFact(
                input=decl.name,
                values=row,
                time=time,
                place=place,
                late=late,
                ingested_at=self._clock,
            )
        row = {COMMITTED_AT: self._clock} | row
        return TrialFact(
            input=decl.name,
            values=row,
            time=time,
            place=self._came,
            late=late,
            ingested_at=self._clock,
            deleted=deleted,
        )

    def _time(self, decl: InputDecl, row: Row, at: int) -> datetime:
        named = "occurred_at" if decl.events else self._event_time(decl.name)
        found = row.get(named)
        if found is None and named == COMMITTED_AT:
            found = self._clock
        if not isinstance(found, datetime):
            raise self.script.refusal(
                f"a row of {decl.name} without a time",
                at=at,
                fix=f"Give it a column {named}: the time in UTC at which it became true.",
            )
        return found

    def _event_time(self, name: str) -> str:
        named = [
            each.event_time for each in self.holdings.sources if each.on == name and each.event_time
        ]
        return named[0] if named else COMMITTED_AT

    def _closed_after(self, name: str) -> timedelta:
        lateness = self.holdings.lateness(name, self.lateness)
        own = [s.closed_after for s in self.holdings.sources if s.on == name and s.closed_after]
        return max([lateness, *own])


def _place(row: Row) -> int:
    position = row["position"]
    assert isinstance(position, int)
    return position


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """What the inputs of a projection hold of the facts that came."""

    inputs: Mapping[str, InputDecl]
    sources: Sequence[SourceDecl]

    def lateness(self, name: str, default: timedelta) -> timedelta:
        """Return how late rows of a category or a table may be."""
        own = [each.lateness for each in self.sources if each.on == name and each.lateness]
        return own[0] if own else default

    def ended_us(
        self, scans: Sequence[Scan], facts: Sequence[TrialFact], default: timedelta
    ) -> int | None:
        """Return the moment up to which streams have brought what is in time, as the runner does.

        In microseconds since 1970; None while one of them has given nothing.
        """
        ended = []
        for scan in scans:
            source = self._source(scan.name)
            on = source.on if source is not None and source.on else scan.name
            on = ".".join(on.split(".")[:2]) if on.startswith("events.") else on
            own = [f.time for f in facts if f.input == on or f.input.startswith(f"{on}.")]
            ended.append(max(own) - self.lateness(on, default) if own else None)
        known = [micros(each) for each in ended if each is not None]
        return min(known) if known and len(known) == len(ended) else None

    def touched(self, scan: Scan, facts: Sequence[TrialFact]) -> list[TrialFact]:
        """Return the facts that an input is made of."""
        source = self._source(scan.name)
        name = source.on if source is not None and source.on else scan.name
        members = GivenCatalog(tuple(self.inputs.values())).members(name)
        return [fact for fact in facts if fact.input in members]

    def rows(self, scan: Scan, facts: Sequence[TrialFact], *, stateful: bool) -> pa.Table:
        """Return an input's rows as typed tables and histories have them.

        Rows that came late are no input of a `stateful` projection.
        """
        mine = self.touched(scan, facts)
        if scan.kind is InputKind.STREAM:
            rows: list[Row] = [
                {INGESTED_AT: fact.ingested_at, "_operation": fact.operation, "_lsn": fact.place}
                | fact.values
                | {"_time": fact.time, "_seq_hi": fact.place}
                for fact in mine
                if not (stateful and fact.late)
            ]
            return input_rows(scan, rows)
        source = self._source(scan.name)
        identity = self.inputs[source.on if source is not None and source.on else scan.name].key
        by_row = source is not None and bool(source.event_time or source.key)
        key = source.key if source is not None and source.key else identity
        found = versions(mine, key, identity, by_row=by_row)
        if scan.kind is InputKind.LATEST:
            found = [row for row in found if row["valid_to"] is None]
        return input_rows(scan, [row | {"_time": row["valid_from"]} for row in found])

    def _source(self, name: str) -> SourceDecl | None:
        return next((each for each in self.sources if each.name == name), None)


def input_rows(scan: Scan, rows: Sequence[Row]) -> pa.Table:
    """Return rows as an input has them, with the columns that engines read beside its own."""
    own = [pa.field(each.name, arrow_type(each)) for each in scan.columns]
    if scan.kind is not InputKind.STREAM:
        mine = {each.name for each in own}
        own += [pa.field(n, UTC_MICROS) for n in ("valid_from", "valid_to") if n not in mine]
    order = [pa.field("_time", UTC_MICROS), pa.field("_seq_hi", pa.int64())]
    fixed = [pa.field("_seq_lo", pa.int64()), pa.field("_epoch", pa.int64())]
    schema = pa.schema([*own, *order, *fixed, pa.field("_deleted", pa.bool_())])
    # Rows of another projection have no place in time of their own.
    more = {"_time": UNIX_EPOCH, "_seq_hi": 0, "_seq_lo": 0, "_epoch": 1, "_deleted": False}
    return pa.Table.from_pylist([more | row for row in rows], schema)


def versions(
    facts: Sequence[TrialFact], key: Sequence[str], identity: Sequence[str], *, by_row: bool
) -> list[Row]:
    """Return the versions that changes of a table make, as `pipeline.history.tables` keeps them.

    `facts` are in the order of the source. By row, each row as it is now is a version of the key
    at its event time; otherwise each change is one.
    """
    held: list[TrialFact] = []
    if by_row:
        newest = {tuple(f.values.get(n) for n in identity): f for f in facts if not f.late}
        held = [fact for fact in newest.values() if not fact.deleted]
    else:
        held = list(facts)
    at: dict[tuple[object, ...], dict[datetime, TrialFact]] = {}
    for fact in sorted(held, key=lambda each: each.place):
        mine = at.setdefault(tuple(fact.values.get(n) for n in key), {})
        # In commit order a version never begins before the one before it.
        mine[fact.time if by_row else max([fact.time, *mine])] = fact
    rows: list[Row] = []
    for found in at.values():
        times = sorted(found)
        for time, following in zip(times, [*times[1:], None], strict=True):
            if not found[time].deleted:
                rows.append(found[time].values | {"valid_from": time, "valid_to": following})
    return rows
