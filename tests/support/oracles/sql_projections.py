"""Projections over the SQL tests' world, each with the same computation in plain Python."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum

from tests.support.oracles.sql_world import START, Fact, Row, World

FROM = "FROM STREAM events.flight.departed AS e"
SPAN = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Case:
    """One projection and its oracle."""

    statement: str
    oracle: Callable[[World], list[Row]]


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _newest(facts: Iterable[Fact]) -> Fact:
    return max(facts, key=lambda fact: (fact.time, fact.position))


def _grouped(
    pairs: Iterable[tuple[tuple[object, ...], Fact]],
) -> dict[tuple[object, ...], list[Fact]]:
    groups: dict[tuple[object, ...], list[Fact]] = defaultdict(list)
    for key, fact in pairs:
        groups[key].append(fact)
    return groups


def _wind(world: World, origin: str, time: datetime) -> int | None:
    """The wind known at `time`: the reading of the latest event time, then sequence."""
    before = [r for r in world.readings if r.origin == origin and r.time <= time]
    return max(before, key=lambda r: (r.time, r.sequence)).wind if before else None


def _starts(time: datetime, slide: int, size: int) -> list[datetime]:
    """Every start of a window of `size` minutes, one each `slide` minutes, that holds `time`."""
    minutes = (time - START) // SPAN
    aligned = range(-100 * slide, minutes + 1, slide)
    return [START + m * SPAN for m in aligned if m <= minutes < m + size]


def _mean(values: list[int]) -> float | None:
    return sum(values) / len(values) if values else None


def _sum(values: list[float]) -> float | None:
    return fsum(values) if values else None


def _status(world: World) -> list[Row]:
    groups = _grouped(((f.flight,), f) for f in world.facts if f.delay is None or f.delay < 3)
    return [
        {"flight": key[0], "delay": _newest(facts).delay, "place": _newest(facts).origin.lower()}
        for key, facts in groups.items()
    ]


def _hop(world: World) -> list[Row]:
    groups = _grouped(
        ((f.carrier, start), f)
        for f in world.facts
        if f.carrier is not None and f.distance > 0
        for start in _starts(f.time, 10, 25)
    )
    rows: list[Row] = []
    for (carrier, start), facts in groups.items():
        delays = [f.delay for f in facts if f.delay is not None]
        if len(facts) > 1 or delays == [3]:
            assert isinstance(start, datetime)
            rows.append(
                {
                    "carrier": carrier,
                    "window_start": start,
                    "window_end": start + 25 * SPAN,
                    "n": len(facts),
                    "total": sum(delays) if delays else None,
                    "mean": _mean(delays),
                    "worst": max(delays, default=None),
                    "flights": len({f.flight for f in facts}),
                    "distance": _sum([f.distance for f in facts]),
                    "late": sum(1 for d in delays if d >= 3),
                }
            )
    return rows


def _tumble(world: World) -> list[Row]:
    groups = _grouped(((_starts(f.time, 15, 15)[0] + 15 * SPAN,), f) for f in world.facts)
    return [
        {"until": key[0], "n": len(facts), "last": _newest(facts).flight}
        for key, facts in groups.items()
    ]


def _cumulate(world: World) -> list[Row]:
    pairs = []
    for f in world.facts:
        start = _starts(f.time, 30, 30)[0]
        ends = [start + m * SPAN for m in (10, 20, 30)]
        pairs += [((f.origin, end), f) for end in ends if end > f.time]
    return [
        {"origin": key[0], "window_end": key[1], "n": len(facts)}
        for key, facts in _grouped(pairs).items()
    ]


def _as_of_left(world: World) -> list[Row]:
    rows: list[Row] = []
    for key, facts in _grouped(((f.flight,), f) for f in world.facts).items():
        fact = _newest(facts)
        wind = _wind(world, fact.origin, fact.time)
        rows.append({"flight": key[0], "at": fact.time, "wind": wind})
    return rows


def _as_of_inner(world: World) -> list[Row]:
    windy = [f for f in world.facts if (_wind(world, f.origin, f.time) or 0) > 1]
    return [
        {"flight": key[0], "carrier": _newest(facts).carrier}
        for key, facts in _grouped(((f.flight,), f) for f in windy).items()
    ]


def _windy_delays(world: World) -> list[Row]:
    groups = _grouped(
        ((f.carrier, _starts(f.time, 20, 20)[0]), f) for f in world.facts if f.carrier is not None
    )
    rows: list[Row] = []
    for key, facts in groups.items():
        winds = [w for f in facts if (w := _wind(world, f.origin, f.time)) is not None]
        rows.append(
            {
                "carrier": key[0],
                "start": key[1],
                "known": len(winds),
                "strongest": max(winds, default=None),
                "last_wind": _wind(world, _newest(facts).origin, _newest(facts).time),
            }
        )
    return rows


def _plain(world: World) -> list[Row]:
    groups = _grouped(((f.carrier,), f) for f in world.facts if f.carrier is not None)
    return [
        {
            "carrier": key[0],
            "n": len(facts),
            "mean": _mean([f.delay for f in facts if f.delay is not None]),
            "last_delay": _newest(facts).delay,
            "flight": max(f.flight for f in facts),
        }
        for key, facts in groups.items()
    ]


CASES = {
    "newest": _case(
        "status",
        "flight",
        f"SELECT flight, delay, lower(origin) AS place {FROM} WHERE coalesce(delay, 0) < 3",
        _status,
    ),
    "hop": _case(
        "hop",
        "carrier, window_start",
        "SELECT carrier, window_start, window_end, COUNT(*) AS n, SUM(delay) AS total, "
        "AVG(delay) AS mean, MAX(delay) AS worst, COUNT(DISTINCT flight) AS flights, "
        "SUM(distance) AS distance, COUNT(*) FILTER (WHERE delay >= 3) AS late "
        f"{FROM} WHERE distance > 0 GROUP BY carrier, HOP(occurred_at, '10 minutes', '25 minutes') "
        "HAVING n > 1 OR (COUNT(delay) = 1 AND MAX(delay) = 3)",
        _hop,
    ),
    "tumble": _case(
        "tumble",
        "until",
        f"SELECT window_end AS until, COUNT(*) AS n, flight AS last {FROM} "
        "GROUP BY TUMBLE(occurred_at, INTERVAL 15 MINUTES)",
        _tumble,
    ),
    "cumulate": _case(
        "cumulate",
        "origin, window_end",
        f"SELECT origin, window_end, COUNT(*) AS n {FROM} "
        "GROUP BY 1, CUMULATE(occurred_at, '10 minutes', '30 minutes')",
        _cumulate,
    ),
    "as of, left": _case(
        "left_join",
        "flight",
        f"SELECT e.flight, occurred_at AS at, w.wind {FROM} "
        "LEFT JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at AS w ON w.origin = e.origin",
        _as_of_left,
    ),
    "as of, inner": _case(
        "inner_join",
        "flight",
        f"SELECT e.flight, e.carrier {FROM} "
        "JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w ON e.origin = w.origin AND w.wind > 0 "
        "WHERE w.wind > 1",
        _as_of_inner,
    ),
    "as of, windowed": _case(
        "windy",
        "carrier, start",
        "SELECT carrier, window_start AS start, COUNT(w.wind) AS known, "
        f"MAX(w.wind) AS strongest, w.wind AS last_wind {FROM} "
        "LEFT JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w ON w.origin = e.origin "
        "GROUP BY carrier, TUMBLE(e.occurred_at, '20 minutes')",
        _windy_delays,
    ),
    "one group of all": _case(
        "numbers",
        "scope",
        f"SELECT 'all' AS scope, COUNT(*) AS n {FROM} GROUP BY 'all'",
        lambda world: [{"scope": "all", "n": len(world.facts)}] if world.facts else [],
    ),
    "plain group": _case(
        "plain",
        "carrier",
        "SELECT e.carrier, COUNT(*) AS n, AVG(delay) AS mean, delay AS last_delay, "
        f"MAX(flight) AS flight {FROM} GROUP BY e.carrier",
        _plain,
    ),
}
