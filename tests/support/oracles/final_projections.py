"""Projections with `emit = 'final'` over the SQL tests' world: each row with its end, in Python.

An oracle gives all rows that there will be; those count whose end the watermark has passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.support.oracles.region_projections import CASES, MINUTE, Case
from tests.support.oracles.sql_world import Row, World

LATENESS = 10 * MINUTE
_MOMENT = timedelta(microseconds=1)


def watermark_us(world: World) -> int | None:
    """Return the newest event time of a world's facts, minus the lateness."""
    times = [fact.time for fact in world.facts]
    return micros(max(times) - LATENESS) if times else None


def micros(moment: datetime) -> int:
    """Return microseconds since 1970, of a moment in UTC."""
    return (moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // _MOMENT


def _final(name: str, end: Callable[[World, Row], datetime]) -> Case:
    case = CASES[name]

    def oracle(world: World) -> list[Row]:
        ended = watermark_us(world)
        rows = [row | {"_end": micros(end(world, row))} for row in case.oracle(world)]
        return [row for row in rows if ended is not None and int(str(row["_end"])) <= ended]

    statement = case.statement.replace("') AS", "', emit = 'final') AS", 1)
    return replace(case, statement=statement, oracle=oracle)


def _moment(value: object) -> datetime:
    assert isinstance(value, datetime)
    return value


def _time(world: World, position: object) -> datetime:
    return next(fact.time for fact in world.facts if fact.position == position)


FINAL = {
    "hopping, then by window": _final(
        "hopping, then by window", lambda _, row: _moment(row["start"]) + 25 * MINUTE
    ),
    "cumulating": _final("cumulating", lambda _, row: _moment(row["until"])),
    "sessions": _final("sessions", lambda _, row: _moment(row["window_end"])),
    "over a range": _final(
        "over a range", lambda world, row: _time(world, row["position"]) + _MOMENT
    ),
    "over rows": _final("over rows", lambda world, row: _time(world, row["position"]) + _MOMENT),
    "two streams": _final(
        "two streams",
        lambda world, row: max(_time(world, row["p"]), _time(world, row["q"])) + _MOMENT,
    ),
    "two streams, left": _final(
        "two streams, left", lambda world, row: _time(world, row["p"]) + 10 * MINUTE + _MOMENT
    ),
    "semi": _final("semi", lambda world, row: _time(world, row["p"]) + _MOMENT),
    "anti": _final("anti", lambda world, row: _time(world, row["p"]) + _MOMENT),
}
