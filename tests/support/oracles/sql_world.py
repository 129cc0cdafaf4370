"""A small world for the SQL tests: facts, versions and rows that arrive in any order.

`World` holds what arrived in which epoch. `kept` plays the runner over the epochs with any engine
that runs Spark SQL over views; `ORACLES` compute the same results in plain Python, from the
arrivals alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from projections.sql.catalog import Column, MemoryCatalog, Relation
from projections.sql.declared import DeclaredCatalog
from projections.sql.parse import parse_script
from projections.sql.plan import InputKind, Plan, Strategy, plan

Row = dict[str, object]
GHOST_WIND = 9
START = datetime.fromisoformat("2013-01-01T00:00:00")
"""In UTC, without a zone: as the engines hand times back."""


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
    streams={"events.flight.departed": _relation("events.flight.departed", FACT_COLUMNS)},
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
class _View:
    columns: Mapping[str, str]
    rows: Callable[[World], list[Row]]


_VIEWS = {
    InputKind.STREAM: _View({**FACT_COLUMNS, **ORDER_COLUMNS}, fact_rows),
    InputKind.HISTORY: _View({**READING_COLUMNS, **VERSION_COLUMNS}, version_rows),
}


def register(engine: Engine, plan: Plan, now: World, before: World | None = None) -> None:
    """Make the views of every input, and with `before` those of what is new since then."""
    for one in plan.inputs:
        view = _VIEWS[one.kind]
        rows = view.rows(now)
        engine.view(one.view, view.columns, rows)
        if before is not None:
            old = view.rows(before)
            engine.view(f"{one.view}_new", view.columns, [row for row in rows if row not in old])


def rebuilt(engine: Engine, plan: Plan, world: World) -> list[Row]:
    """All rows, computed from everything at once."""
    register(engine, plan, world)
    return [_visible(plan, row) for row in engine.query(plan.rows_sql)]


def kept(engine: Engine, plan: Plan, world: World) -> list[Row]:
    """All rows as the runner keeps them, epoch after epoch."""
    target: dict[tuple[object, ...], Row] = {}
    before = world.until(0)
    for epoch in world.epochs:
        now = world.until(epoch)
        register(engine, plan, now, before)
        if plan.strategy is Strategy.NEWEST:
            _merge_newest(target, plan, engine.query(plan.changed_sql))
        else:
            _recompute(target, plan, engine, now)
        before = now
    return [_visible(plan, row) for row in target.values()]


def _key(plan: Plan, row: Row) -> tuple[object, ...]:
    return tuple(row[name] for name in plan.key)


def _visible(plan: Plan, row: Row) -> Row:
    return {column.name: row[column.name] for column in plan.columns}


def _order(row: Row) -> tuple[str, int, int]:
    return str(row["_time"]), int(str(row["_seq_hi"])), int(str(row["_seq_lo"]))


def _merge_newest(target: dict[tuple[object, ...], Row], plan: Plan, rows: list[Row]) -> None:
    assert len({_key(plan, row) for row in rows}) == len(rows)
    for row in rows:
        held = target.get(_key(plan, row))
        if held is None or _order(row) > _order(held):
            target[_key(plan, row)] = row


def _recompute(
    target: dict[tuple[object, ...], Row], plan: Plan, engine: Engine, now: World
) -> None:
    assert plan.affected_sql is not None
    affected = engine.query(plan.affected_sql)
    if not affected:
        return
    types = {column.name: column.type or "STRING" for column in plan.columns}
    engine.view("affected", {name: types[name] for name in plan.key}, affected)
    bounds = plan.inputs[0].time_bounds
    if bounds is not None:
        low = engine.query(f"SELECT {bounds.lower_sql} AS v FROM affected")[0]["v"]
        high = engine.query(f"SELECT {bounds.upper_sql} AS v FROM affected")[0]["v"]
        rows = [row for row in fact_rows(now) if str(low) <= str(row[bounds.column]) < str(high)]
        engine.view(plan.inputs[0].view, _VIEWS[InputKind.STREAM].columns, rows)
    changed = engine.query(plan.changed_sql)
    keys = {_key(plan, row) for row in affected}
    assert len(keys) == len(affected)
    assert len({_key(plan, row) for row in changed}) == len(changed)
    assert {_key(plan, row) for row in changed} <= keys
    for key in keys:
        target.pop(key, None)
    for row in changed:
        target[_key(plan, row)] = row


def canonical(rows: list[Row]) -> list[str]:
    """Rows as sorted text; numbers by their exact bits, times as they are."""
    return sorted(
        repr(sorted((name, _exact(value)) for name, value in row.items())) for row in rows
    )


def _exact(value: object) -> object:
    return value.hex() if isinstance(value, float) else value
