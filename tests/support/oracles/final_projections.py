"""Projections with `emit = 'final'` over the SQL tests' world: each row with its end, in Python.

An oracle gives all rows that there will be; those count whose end the watermark has passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.support.oracles.region_projections import CASES, MINUTE, Case
from tests.support.oracles.sql_world import START, Row, World

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
    return _ended(CASES[name], end)


def _ended(case: Case, end: Callable[[World, Row], datetime]) -> Case:
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


def _by_window(minutes: int, times: Iterable[datetime], until: str, *, moved: int = 0) -> list[Row]:
    first = START + moved * MINUTE
    counts = Counter((time - first) // (minutes * MINUTE) for time in times)
    return [{until: first + (n + 1) * minutes * MINUTE, "n": count} for n, count in counts.items()]


def _times_of_pairs(world: World) -> list[datetime]:
    return [
        a.time
        for a in world.facts
        for b in world.facts
        if a.flight == b.flight and a.time - 10 * MINUTE <= b.time < a.time
    ]


_HOURS = Case(
    "CREATE PROJECTION halves WITH (key = 'until') AS SELECT window_end AS until, SUM(n) AS n "
    "FROM (SELECT flight, window_start AS five, COUNT(*) AS n FROM STREAM events.flight.departed "
    "GROUP BY flight, TUMBLE(occurred_at, '5 minutes')) x GROUP BY TUMBLE(five, '30 minutes')",
    lambda world: _by_window(30, (fact.time for fact in world.facts), "until"),
)
"""Windows over the beginnings of shorter ones."""
_MOVED = Case(
    _HOURS.statement.replace("'30 minutes'", "'30 minutes', '10 minutes'"),
    lambda world: _by_window(30, (fact.time for fact in world.facts), "until", moved=10),
)
_PAIRS = Case(
    "CREATE PROJECTION met WITH (key = 'until') AS SELECT window_end AS until, COUNT(*) AS n "
    "FROM STREAM events.flight.departed a JOIN STREAM events.flight.departed b "
    "ON b.flight = a.flight AND b.occurred_at < a.occurred_at "
    "AND b.occurred_at >= a.occurred_at - INTERVAL 10 MINUTES "
    "GROUP BY TUMBLE(a.occurred_at, '10 minutes')",
    lambda world: _by_window(10, _times_of_pairs(world), "until"),
)
"""Windows over the later rows of pairs."""

FINAL = {
    "windows of windows": _ended(_HOURS, lambda _, row: _moment(row["until"])),
    "windows of windows, moved": _ended(_MOVED, lambda _, row: _moment(row["until"])),
    "pairs, by window": _ended(_PAIRS, lambda _, row: _moment(row["until"])),
    "hopping, then by window": _final(
        "hopping, then by window", lambda _, row: _moment(row["start"]) + 25 * MINUTE
    ),
    "cumulating": _final("cumulating", lambda _, row: _moment(row["until"])),
    "sessions": _final("sessions", lambda _, row: _moment(row["window_end"])),
    "over a range": _final(
        "over a range", lambda world, row: _time(world, row["position"]) + _MOMENT
    ),
    "over rows": _final("over rows", lambda world, row: _time(world, row["position"]) + _MOMENT),
    "over rows before": _final(
        "over rows before", lambda world, row: _time(world, row["position"]) + _MOMENT
    ),
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
