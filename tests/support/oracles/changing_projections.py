"""Groups of rows that come and go, each with the same in plain Python: see `region_projections`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import reduce
from math import fsum, inf

from tests.support.oracles.region_projections import (
    FROM,
    Case,
    counted_windows,
    percentile_of,
    variance_of,
    wind_at,
)
from tests.support.oracles.sql_world import Fact, Row, World

_WINDY = (
    f"(SELECT coalesce(w.wind, 0) AS wind, e.flight, e.origin, e.delay, e.distance {FROM} e "
    "LEFT JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w ON w.origin = e.origin) x"
)


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _by_wind(world: World) -> dict[int, list[Fact]]:
    groups: dict[int, list[Fact]] = defaultdict(list)
    for fact in world.facts:
        groups[wind_at(world, fact) or 0].append(fact)
    return groups


def _delays(facts: Iterable[Fact]) -> list[int]:
    return [fact.delay for fact in facts if fact.delay is not None]


def _totals(world: World) -> list[Row]:
    rows: list[Row] = []
    for wind, facts in _by_wind(world).items():
        delays, distances = _delays(facts), [fact.distance for fact in facts]
        rows.append(
            {
                "wind": wind,
                "n": len(facts),
                "known": len(delays),
                "total": sum(delays) if delays else None,
                "mean": sum(delays) / len(delays) if delays else None,
                "far": fsum(distances),
                "apart": fsum(distances) / len(distances),
            }
        )
    return rows


def _values(world: World) -> list[Row]:
    rows: list[Row] = []
    for wind, facts in _by_wind(world).items():
        delays, flights = _delays(facts), [fact.flight for fact in facts]
        often = Counter(flights)
        rows.append(
            {
                "wind": wind,
                "n": len(facts),
                "least": min(delays, default=None),
                "most": max(fact.distance for fact in facts),
                "some": any(delay == 3 for delay in delays) if delays else None,
                "flights": len({*flights}),
                "once": sum({*delays}) if delays else None,
                "usual": min(often, key=lambda flight: (-often[flight], flight)),
                "high": percentile_of((fact.distance for fact in facts), 0.9),
                "middle": float(sorted(delays)[(len(delays) - 1) // 2]) if delays else None,
                "origins": "|".join(sorted(fact.origin for fact in facts)),
                "spread": variance_of(delays, 0),
                "bits": reduce(int.__xor__, delays) if delays else None,
            }
        )
    return rows


def _ends(world: World) -> list[Row]:
    return [
        {
            "wind": wind,
            "least": min(_delays(facts), default=None),
            "most": max(_delays(facts), default=None),
            "far": max(fact.distance for fact in facts),
            "first": min(fact.flight for fact in facts),
        }
        for wind, facts in _by_wind(world).items()
    ]


def _beyond(world: World) -> list[Row]:
    rows: list[Row] = []
    for wind, facts in _by_wind(world).items():
        total = fsum(inf if fact.delay == 1 else fact.distance for fact in facts)
        rows.append({"wind": wind, "total": total, "mean": total / len(facts)})
    return rows


def _different(world: World) -> list[Row]:
    pairs = {(fact.origin, wind_at(world, fact) or 0) for fact in world.facts}
    return [{"origin": origin, "wind": wind} for origin, wind in pairs]


def _last_counted(world: World) -> list[Row]:
    at = {fact.position: fact for fact in world.facts}
    by_flight: dict[str, list[Fact]] = defaultdict(list)
    for fact in sorted(at.values(), key=lambda fact: (fact.time, fact.position)):
        by_flight[fact.flight].append(fact)
    return [
        row | {"last": by_flight[str(row["flight"])][place].origin}
        for row in counted_windows(world)
        for place in [int(str(row["number"])) * 3 + int(str(row["n"])) - 1]
    ]


def _newest_groups(world: World) -> list[Row]:
    groups: dict[str, dict[int, list[Fact]]] = defaultdict(dict)
    for wind, facts in _by_wind(world).items():
        for fact in facts:
            groups[fact.flight].setdefault(wind, []).append(fact)
    rows: list[Row] = []
    for flight, by_wind in groups.items():
        last = {w: max((f.time, f.position) for f in facts) for w, facts in by_wind.items()}
        newest = max(last, key=lambda wind: last[wind])
        rows.append({"flight": flight, "wind": newest, "n": len(by_wind[newest])})
    return rows


CHANGING = {
    "totals of rows that move": _case(
        "windy_totals",
        "wind",
        "SELECT wind, COUNT(*) AS n, COUNT(delay) AS known, SUM(delay) AS total, AVG(delay) AS "
        f"mean, SUM(distance) AS far, AVG(distance) AS apart FROM {_WINDY} GROUP BY wind",
        _totals,
    ),
    "values of rows that move": _case(
        "windy_values",
        "wind",
        "SELECT wind, COUNT(*) AS n, MIN(delay) AS least, MAX(distance) AS most, "
        "BOOL_OR(delay = 3) AS some, COUNT(DISTINCT flight) AS flights, SUM(DISTINCT delay) AS "
        "once, MODE(flight) AS usual, PERCENTILE(distance, 0.9) AS high, "
        "PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY delay) AS middle, STRING_AGG(origin, '|') "
        f"AS origins, VAR_POP(delay) AS spread, BIT_XOR(delay) AS bits FROM {_WINDY} GROUP BY wind",
        _values,
    ),
    "totals beyond all numbers": _case(
        "windy_beyond",
        "wind",
        "SELECT wind, SUM(x) AS total, AVG(x) AS mean FROM (SELECT wind, CASE WHEN delay = 1 THEN "
        f"CAST('Infinity' AS DOUBLE) ELSE distance END AS x FROM {_WINDY}) y GROUP BY wind",
        _beyond,
    ),
    "ends of rows that move": _case(
        "windy_ends",
        "wind",
        "SELECT wind, MIN(delay) AS least, MAX(delay) AS most, MAX(distance) AS far, "
        f"MIN(flight) AS first FROM {_WINDY} GROUP BY wind",
        _ends,
    ),
    "different rows of a join": _case(
        "windy_origins",
        "origin, wind",
        f"SELECT DISTINCT origin, wind FROM {_WINDY}",
        _different,
    ),
}
"""Kept by the rows that came and went."""
PLACED = {
    "newest of groups": _case(
        "windy_flights",
        "flight",
        f"SELECT flight, wind, COUNT(*) AS n FROM {_WINDY} GROUP BY flight, wind",
        _newest_groups,
    ),
    "count windows, with their last": _case(
        "counted_last",
        "flight, number",
        "SELECT flight, number, COUNT(*) AS n, SUM(distance) AS far, origin AS last FROM "
        "(SELECT flight, distance, origin, (ROW_NUMBER() OVER (PARTITION BY flight ORDER BY "
        f"occurred_at) - 1) DIV 3 AS number {FROM}) numbered GROUP BY flight, number",
        _last_counted,
    ),
}
"""Of these somebody asks for the newest row: they are computed again."""
