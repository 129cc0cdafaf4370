"""A small world for the SQL tests: facts, versions and rows that arrive in any order.

`World` holds what arrived in which epoch. `kept` plays the runner over the epochs with any engine
that runs Spark SQL over views; `ORACLES` compute the same results in plain Python, from the
arrivals alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from kernel.positions import Epoch
from lake.ranges import Among, Condition, Spans
from lake.writer import DELETE, OP
from projections.run.database import arrow_schema
from projections.run.input_rows import fact_schema
from projections.run.key_runs import changed_rows
from projections.run.keyed_facts import KeyedFacts
from projections.sql.operators.tree import Scan, scans
from projections.sql.plans.adding import GIVEN
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.key_steps import TOUCHED
from projections.sql.plans.plan import InputKind, Plan, Strategy, plan
from projections.sql.rendering.dialect import Dialect
from projections.sql.rendering.spark_text import SparkText
from projections.sql.statements.parse import parse_script
from projections.sql.words.catalog import Column, MemoryCatalog, Relation

Row = dict[str, object]
GHOST_WIND = 9
START = datetime.fromisoformat("2013-01-01T00:00:00")
"""In UTC, without a zone: as the engines hand times back."""


class Leg(NamedTuple):
    """An element of a departure's array: a stop, and a number."""

    stop: str | None
    n: int | None


@dataclass(frozen=True, slots=True)
class Fact:
    """A departure. `minute` is its event time; `position` its place in the store."""

    position: int
    epoch: int
    flight: str
    carrier: str | None
    origin: str
    minute: int
    delay: int | None
    distance: float

    @property
    def time(self) -> datetime:
        return START + timedelta(minutes=self.minute)

    @property
    def legs(self) -> list[Leg | None] | None:
        """None, no element, two that are equal, or one that is NULL."""
        own = Leg(self.origin, self.delay)
        return [None, [], [own, Leg("X", 1), own], [Leg(self.carrier, 2), None]][self.position % 4]

    @property
    def loads(self) -> dict[str, int | None] | None:
        """None, no entry, or two."""
        return [None, {}, {self.flight: self.delay, "all": 1}][self.position % 3]

    @property
    def doc(self) -> Row | None:
        """None, or a struct with another one or none in it."""
        part = None if self.delay is None else {"n": self.delay}
        return {"name": self.carrier, "part": part} if self.position % 4 else None


@dataclass(frozen=True, slots=True)
class Reading:
    """A row of the weather table, or its deletion (`wind` None), by event time `minute`."""

    sequence: int
    epoch: int
    origin: str
    minute: int
    wind: int | None

    @property
    def time(self) -> datetime:
        return START + timedelta(minutes=self.minute)


@dataclass(frozen=True, slots=True)
class World:
    facts: tuple[Fact, ...]
    readings: tuple[Reading, ...]

    @property
    def epochs(self) -> list[int]:
        return sorted({item.epoch for item in (*self.facts, *self.readings)})

    def until(self, epoch: int) -> World:
        return World(
            facts=tuple(fact for fact in self.facts if fact.epoch <= epoch),
            readings=tuple(reading for reading in self.readings if reading.epoch <= epoch),
        )


FACT_COLUMNS = {
    "flight": "STRING",
    "carrier": "STRING",
    "origin": "STRING",
    "delay": "INT",
    "distance": "DOUBLE",
    "position": "BIGINT",
    "occurred_at": "TIMESTAMP",
}
SERVED_COLUMNS = {
    **FACT_COLUMNS,
    "legs": "array<struct<stop:string,n:int>>",
    "loads": "map<string,int>",
    "doc": "struct<name:string,part:struct<n:int>>",
}
"""Of the same departures as documents: with an array of structs, a map and a struct."""
ORDER_COLUMNS = {"_epoch": "BIGINT", "_time": "TIMESTAMP", "_seq_hi": "BIGINT", "_seq_lo": "BIGINT"}
READING_COLUMNS = {"origin": "STRING", "hour": "TIMESTAMP", "wind": "INT"}
AIRLINE_COLUMNS = {"carrier": "STRING", "label": "STRING"}
VERSION_COLUMNS = {"valid_from": "TIMESTAMP", "valid_to": "TIMESTAMP", "_deleted": "BOOLEAN"}


def _relation(name: str, columns: Mapping[str, str], *key: str) -> Relation:
    return Relation(
        name=name,
        columns=tuple(Column(name=n, type=t) for n, t in columns.items()),
        key=key,
        event_time="occurred_at" if "occurred_at" in columns else None,
    )


CATALOG = MemoryCatalog(
    streams={
        "events.flight.departed": _relation("events.flight.departed", FACT_COLUMNS),
        "events.flight.served": _relation("events.flight.served", SERVED_COLUMNS),
    },
    histories={
        "demo.public.weather": _relation("demo.public.weather", READING_COLUMNS, "origin", "hour")
    },
    latests={"demo.public.airlines": _relation("demo.public.airlines", AIRLINE_COLUMNS, "carrier")},
)
SOURCES = """
CREATE SOURCE weather ON demo.public.weather WITH (key = origin, event_time = hour);
CREATE SOURCE airlines ON demo.public.airlines;
"""


def planned(statement: str) -> Plan:
    """Plan one CREATE PROJECTION over the relations of this world."""
    script = parse_script(SOURCES + statement)
    return plan(script.projections[0], DeclaredCatalog(CATALOG, script.sources))


def fact_rows(world: World) -> list[Row]:
    return [
        {
            "flight": fact.flight,
            "carrier": fact.carrier,
            "origin": fact.origin,
            "delay": fact.delay,
            "distance": fact.distance,
            "position": fact.position,
            "occurred_at": fact.time,
            "legs": None if fact.legs is None else [leg and leg._asdict() for leg in fact.legs],
            "loads": None if fact.loads is None else [*fact.loads.items()],
            "doc": fact.doc,
            "_epoch": fact.epoch,
            "_time": fact.time,
            "_seq_hi": fact.position,
            "_seq_lo": 0,
        }
        for fact in world.facts
    ]


def version_rows(world: World) -> list[Row]:
    """Fold readings into versions: by event time, at one time the later sequence counts."""
    at: dict[str, dict[datetime, Reading]] = defaultdict(dict)
    for reading in sorted(world.readings, key=lambda reading: reading.sequence):
        at[reading.origin][reading.time] = reading
    rows: list[Row] = []
    for origin, readings in at.items():
        times = sorted(readings)
        for time, following in zip(times, [*times[1:], None], strict=True):
            wind = readings[time].wind
            rows.append(
                {
                    "origin": origin,
                    "hour": time,
                    # What a deleted row held must not matter.
                    "wind": GHOST_WIND if wind is None else wind,
                    "valid_from": time,
                    "valid_to": following,
                    "_deleted": wind is None,
                }
            )
    return rows


class Engine(Protocol):
    """Runs Spark SQL over views made of rows."""

    def view(self, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None: ...

    def query(self, sql: str) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class WorldEngine:
    """The inputs of a run as they are in a world; rows that do not meet its conditions are absent.

    So whoever asks for too few of them gets too few. With `keyed` facts are found by their keys
    there, where some are asked for, as in the pipeline's process behind a long history.
    """

    engine: Engine
    plan: Plan
    world: World
    dialect: Dialect = field(default_factory=SparkText)
    target: Mapping[tuple[object, ...], Row] = field(default_factory=dict)
    keyed: KeyedFacts | None = None

    def facts(
        self, scan: Scan, conditions: Sequence[Condition], *, keys: pa.Table | None = None
    ) -> None:
        found = None
        if self.keyed is not None and keys is not None:
            last = Epoch(max(self.world.epochs))
            read = partial(self._came, scan)
            found = self.keyed.of(scan, keys, last, read, most_bytes=2**20)
        if found is None:
            self._view(scan.view, _fact_columns(scan), fact_rows(self.world), conditions)
            return
        columns = {each.name: each.type for each in scan.columns} | ORDER_COLUMNS
        del columns["_epoch"]
        self.engine.view(scan.view, columns, [plain(row) for row in found.to_pylist()])

    def _came(self, scan: Scan, after: Epoch) -> list[pa.Table]:
        shape = fact_schema(scan)
        rows = [zoned(row) for row in fact_rows(self.world) if int(str(row["_epoch"])) > after]
        return [pa.Table.from_pylist(rows, shape)]

    def versions(self, scan: Scan, conditions: Sequence[Condition], *, alike: bool = False) -> None:
        rows = [{**row, "_epoch": self._changed_in(row)} for row in version_rows(self.world)]
        rows = [{**row, "_deleted": False} for row in rows] if alike else rows
        self._view(scan.view, {**READING_COLUMNS, **VERSION_COLUMNS}, rows, conditions)

    def touch(self, keys: pa.Table) -> None:
        known = {each.name: each.type or "STRING" for each in self.plan.columns}
        types = {name: known[name] for name in keys.schema.names}
        self.engine.view(TOUCHED, types, [plain(row) for row in keys.to_pylist()])

    def given(
        self, keys: pa.Table, conditions: Sequence[Condition], columns: Sequence[Column]
    ) -> Epoch | None:
        wanted = {_key(self.plan, plain(row)) for row in keys.to_pylist()}
        rows = [row for key, row in self.target.items() if key in wanted]
        # Whoever asks for too few of them gets too few.
        rows = [row for row in rows if all(_meets(row, each) for each in conditions)]
        types = {each.name: each.type or "STRING" for each in columns}
        self.engine.view(GIVEN, types, [{name: row[name] for name in types} for row in rows])
        return Epoch(max((int(str(row["_epoch"])) for row in rows), default=0))

    def narrow(self, scan: Scan, query: str) -> None:
        rows = self.engine.query(query)
        columns = _fact_columns(scan)
        given = rows[0] if rows else columns
        self.engine.view(scan.view, {n: t for n, t in columns.items() if n in given}, rows)

    def values(self, scan: Scan, columns: Sequence[str]) -> pa.Table | None:
        kinds = {each.name: each for each in scan.columns}
        query = f"SELECT DISTINCT {', '.join(columns)} FROM {scan.view}"
        return self.rows(query, [kinds[name] for name in columns])

    def rows(self, query: str, columns: Sequence[Column]) -> pa.Table:
        shape = arrow_schema([replace(each, type=each.type or "STRING") for each in columns])
        return pa.Table.from_pylist([zoned(row) for row in self.engine.query(query)], shape)

    def _view(
        self,
        name: str,
        columns: Mapping[str, str],
        rows: list[Row],
        conditions: Sequence[Condition],
    ) -> None:
        self.engine.view(
            name, columns, [row for row in rows if all(_meets(row, each) for each in conditions)]
        )

    def _changed_in(self, row: Row) -> int:
        """The epoch in which a version became as it is, its end included."""
        last = 0
        for epoch in self.world.epochs:
            if row not in version_rows(self.world.until(epoch)):
                last = epoch
        return min(epoch for epoch in self.world.epochs if epoch > last)


def _fact_columns(scan: Scan) -> dict[str, str]:
    return {**FACT_COLUMNS, **{each.name: each.type for each in scan.columns}, **ORDER_COLUMNS}


def _meets(row: Row, condition: Condition) -> bool:
    value = zoned(row)[condition.column]
    if isinstance(condition, Among):
        return value in condition.values.to_pylist()
    if isinstance(condition, Spans):
        spans = condition.spans
    else:
        spans = ((condition.lower, condition.upper),)
    return any(
        (low is None or _number(value) >= _number(low))
        and (high is None or _number(value) < _number(high))
        for low, high in spans
    )


def _number(value: object) -> float:
    if isinstance(value, datetime):
        return value.timestamp()
    assert isinstance(value, int)
    return value


def rebuilt(engine: Engine, plan: Plan, world: World) -> list[Row]:
    """All rows, computed from everything at once, by the text that Spark builds with."""
    made = WorldEngine(engine, plan, world)
    for scan in scans(plan.tree):
        (made.facts if scan.kind is InputKind.STREAM else made.versions)(scan, [])
    return [_visible(plan, row) for row in engine.query(plan.rows_sql)]


def kept(
    engine: Engine,
    plan: Plan,
    world: World,
    dialect: Dialect | None = None,
    *,
    keyed: Callable[[], KeyedFacts | None] = lambda: None,
) -> list[Row]:
    """All rows as the runner keeps them, epoch after epoch, by the texts of a dialect.

    `keyed` gives a run what facts are found by.
    """
    rows = stored(engine, plan, world, dialect or SparkText(), keyed=keyed)
    return [_visible(plan, row) for row in rows.values()]


def stored(
    engine: Engine,
    plan: Plan,
    world: World,
    dialect: Dialect,
    *,
    keyed: Callable[[], KeyedFacts | None] = lambda: None,
) -> dict[tuple[object, ...], Row]:
    """What the runner's table has in the end, by key, hidden columns too."""
    target: dict[tuple[object, ...], Row] = {}
    before = 0
    for epoch in world.epochs:
        run = WorldEngine(engine, plan, world.until(epoch), dialect, target, keyed())
        changes = changed_rows(run, plan, Epoch(before), Epoch(epoch))
        rows = [plain(row) | {"_epoch": epoch} for row in changes.to_pylist()]
        _merge(target, plan, rows)
        before = epoch
    return target


def _key(plan: Plan, row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in plan.key)


def _visible(plan: Plan, row: Row) -> Row:
    return {column.name: row[column.name] for column in plan.columns}


def _merge(target: dict[tuple[object, ...], Row], plan: Plan, rows: list[Row]) -> None:
    """Do as the writer does: a row replaces another one, with an order only an older one."""
    assert len({_key(plan, row) for row in rows}) == len(rows), "a key once"
    for row in rows:
        key = _key(plan, row)
        held = target.get(key)
        if row[OP] == DELETE:
            target.pop(key, None)
        elif plan.strategy is not Strategy.NEWEST or held is None or _order(row) >= _order(held):
            target[key] = row


def _order(row: Row) -> tuple[str, int, int]:
    return str(row["_time"]), int(str(row["_seq_hi"])), int(str(row["_seq_lo"]))


def zoned(row: Row) -> Row:
    return {
        name: value.replace(tzinfo=UTC) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def plain(row: Row) -> Row:
    return {
        name: value.replace(tzinfo=None) if isinstance(value, datetime) else value
        for name, value in row.items()
    }


def canonical(rows: list[Row]) -> list[str]:
    """Rows as sorted text; numbers by their exact bits, times as they are."""
    return sorted(
        repr(sorted((name, _exact(value)) for name, value in row.items())) for row in rows
    )


def _exact(value: object) -> object:
    return value.hex() if isinstance(value, float) else value
