"""Projections of several steps over the SQL tests' world, each with the same in plain Python.

The oracles read the facts alone, at once, and share nothing with the planner or its operators.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, floor, fsum, sqrt

from tests.support.oracles.sql_world import START, Fact, Row, World

MINUTE = timedelta(minutes=1)
FROM = "FROM STREAM events.flight.departed"


@dataclass(frozen=True, slots=True)
class Case:
    """One projection and its oracle."""

    statement: str
    oracle: Callable[[World], list[Row]]


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _order(fact: Fact) -> tuple[datetime, int]:
    return fact.time, fact.position


def _by(facts: Iterable[Fact], key: Callable[[Fact], object]) -> dict[object, list[Fact]]:
    groups: dict[object, list[Fact]] = defaultdict(list)
    for fact in sorted(facts, key=_order):
        groups[key(fact)].append(fact)
    return groups


def _flight(fact: Fact) -> object:
    return fact.flight


def _total(values: Iterable[float]) -> float | None:
    known = [*values]
    return fsum(known) if known else None


def _whole(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _grouped(world: World) -> list[Row]:
    return [
        {
            "carrier": carrier,
            "n": len(facts),
            "known": sum(1 for f in facts if f.delay is not None),
            "total": _whole(f.delay for f in facts),
            "mean": _mean(f.delay for f in facts),
            "far": _total(f.distance for f in facts),
            "flights": len({f.flight for f in facts}),
            "last": facts[-1].flight,
            "some": any(f.delay == 3 for f in facts if f.delay is not None) or None
            if not any(f.delay is not None for f in facts)
            else any(f.delay == 3 for f in facts if f.delay is not None),
            "wide": max(f.distance for f in facts),
        }
        for carrier, facts in _by(world.facts, lambda f: f.carrier).items()
        if carrier is not None
    ]


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _hopping(world: World) -> list[Row]:
    groups: dict[tuple[str, datetime], int] = defaultdict(int)
    for fact in world.facts:
        for minute in range(-100, 100, 10):
            start = START + minute * MINUTE
            if start <= fact.time < start + 25 * MINUTE:
                groups[fact.flight, start] += 1
    busiest: dict[datetime, int] = defaultdict(int)
    for (_, start), count in groups.items():
        busiest[start] = max(busiest[start], count)
    return [{"start": start, "most": most} for start, most in busiest.items()]


def _cumulated(world: World) -> list[Row]:
    groups: dict[datetime, list[Fact]] = defaultdict(list)
    for fact in world.facts:
        start = START + ((fact.time - START) // (30 * MINUTE)) * 30 * MINUTE
        for step in (10, 20, 30):
            if fact.time < start + step * MINUTE:
                groups[start + step * MINUTE].append(fact)
    return [
        {"until": end, "n": len(facts), "flights": len({f.flight for f in facts})}
        for end, facts in groups.items()
    ]


def _sessions(world: World) -> list[Row]:
    rows: list[Row] = []
    for flight, facts in _by(world.facts, _flight).items():
        sessions: list[list[Fact]] = []
        for fact in facts:
            if sessions and fact.time - sessions[-1][-1].time < 10 * MINUTE:
                sessions[-1].append(fact)
            else:
                sessions.append([fact])
        rows += [
            {
                "flight": flight,
                "window_start": one[0].time,
                "window_end": one[-1].time + 10 * MINUTE,
                "n": len(one),
                "far": _total(f.distance for f in one),
                "last": one[-1].origin,
            }
            for one in sessions
            if len(one) > 1
        ]
    return rows


def _ranged(world: World) -> list[Row]:
    rows: list[Row] = []
    for facts in _by(world.facts, _flight).values():
        for fact in facts:
            near = [f for f in facts if fact.time - 10 * MINUTE <= f.time <= fact.time]
            rows.append(
                {
                    "position": fact.position,
                    "n": len(near),
                    "far": _total(f.distance for f in near),
                    "late": _whole(f.delay for f in near),
                }
            )
    return rows


def _rows(world: World) -> list[Row]:
    rows: list[Row] = []
    for facts in _by(world.facts, _flight).values():
        for place, fact in enumerate(facts):
            near = facts[max(0, place - 2) : place + 1]
            rows.append(
                {
                    "position": fact.position,
                    "place": place + 1,
                    "far": _total(f.distance for f in near),
                    "before": facts[place - 1].position if place else None,
                }
            )
    return rows


def _before(world: World) -> list[Row]:
    rows: list[Row] = []
    for facts in _by(world.facts, _flight).values():
        for place, fact in enumerate(facts):
            near = facts[max(0, place - 3) : max(0, place - 1)]
            rows.append(
                {
                    "position": fact.position,
                    "n": len(near),
                    "late": _whole(f.delay for f in near),
                    "far": _total(f.distance for f in near),
                    "last": near[-1].origin if near else None,
                    "opened": facts[0].carrier,
                    "late_before": facts[place - 1].delay if place else -1,
                }
            )
    return rows


def _ascending(world: World) -> list[Row]:
    return [
        {
            "flight": flight,
            "origins": "|".join(sorted(f.origin for f in facts)),
            "carriers": ",".join(sorted({f.carrier for f in facts if f.carrier})) or None,
            "middle": percentile_of([f.delay for f in facts if f.delay is not None], 0.5),
            "far": percentile_of([f.distance for f in facts], 0.9),
            "spread": variance_of([f.delay for f in facts if f.delay is not None], 1, root=True),
            "wide": variance_of([f.distance for f in facts if f.distance > 1], 0),
        }
        for flight, facts in _by(world.facts, _flight).items()
    ]


def percentile_of(values: Iterable[float], part: float) -> float | None:
    known = sorted(map(float, values))
    at = part * (len(known) - 1)
    low, high = floor(at), ceil(at)
    if not known or low == high:
        return known[low] if known else None
    return (high - at) * known[low] + (at - low) * known[high]


def variance_of(values: Iterable[float], less: int, *, root: bool = False) -> float | None:
    known = sorted(map(float, values))
    if len(known) <= less:
        return None
    total, squares = 0.0, 0.0
    for one in known:
        total += one
    for one in known:
        squares += (one - total / len(known)) * (one - total / len(known))
    variance = squares / (len(known) - less)
    return sqrt(variance) if root else variance


def _known(world: World) -> list[Row]:
    rows: list[Row] = []
    for facts in _by(world.facts, _flight).values():
        for place, fact in enumerate(facts):
            known = [f.delay for f in facts[: place + 1] if f.delay is not None]
            near = [f.delay for f in facts[max(0, place - 1) : place + 2] if f.delay is not None]
            last, first = known[-1] if known else None, near[0] if near else None
            rows.append({"position": fact.position, "last": last, "first": first})
    return rows


def _neighbours(world: World) -> list[Row]:
    rows: list[Row] = []
    for facts in _by(world.facts, _flight).values():
        for place, fact in enumerate(facts):
            after = facts[place + 2 : place + 3]
            rows.append(
                {
                    "position": fact.position,
                    "before": facts[place - 1].position if place else 0,
                    "far": after[0].distance if after else 0.5,
                    "name": after[0].carrier if after else "it's none",
                    "late": (facts[place - 1].delay == 3)
                    if place and facts[place - 1].delay is not None
                    else (None if place else False),
                }
            )
    return rows


def _top(world: World) -> list[Row]:
    rows: list[Row] = []
    for origin, facts in _by(world.facts, lambda f: f.origin).items():
        best = sorted(facts, key=lambda f: (-f.distance, *_order(f)))
        rows += [
            {"origin": origin, "place": place, "position": fact.position}
            for place, fact in enumerate(best[:2], start=1)
        ]
    return rows


def _ranks(world: World) -> list[Row]:
    rows: list[Row] = []
    for facts in _by(world.facts, lambda f: f.origin).values():
        for fact in facts:
            above = [f.distance for f in facts if f.distance > fact.distance]
            rows.append({"position": fact.position, "r": len(above) + 1, "d": len({*above}) + 1})
    return rows


def counted_windows(world: World) -> list[Row]:
    rows: list[Row] = []
    for flight, facts in _by(world.facts, _flight).items():
        for number in range(0, len(facts), 3):
            some = facts[number : number + 3]
            rows.append(
                {
                    "flight": flight,
                    "number": number // 3,
                    "n": len(some),
                    "far": _total(f.distance for f in some),
                }
            )
    return rows


def _paired(world: World) -> list[Row]:
    return [
        {"p": a.position, "q": b.position, "apart": (b.delay or 0) - (a.delay or 0)}
        for a in world.facts
        for b in world.facts
        if a.flight == b.flight and a.time < b.time <= a.time + 10 * MINUTE
    ]


def _left(world: World) -> list[Row]:
    rows: list[Row] = []
    for a in world.facts:
        found = [
            b
            for b in world.facts
            if a.flight == b.flight and a.time < b.time <= a.time + 10 * MINUTE
        ]
        # Of several rows of a key the one of the latest event time: here the later of each pair.
        last = max(found, key=_order).position if found else None
        rows.append({"p": a.position, "q": last})
    return rows


def _kept(world: World, *, met: bool) -> list[Row]:
    return [
        {"p": a.position}
        for a in world.facts
        if met
        == any(a.flight == b.flight and b.time < a.time and (b.delay or 0) > 0 for b in world.facts)
    ]


def _in(world: World) -> list[Row]:
    late = {f.origin for f in world.facts if f.delay == 3}
    return [{"position": f.position} for f in world.facts if f.origin in late]


def wind_at(world: World, fact: Fact) -> int | None:
    """The wind at the fact's place and time: of the latest version that began before."""
    before = [r for r in world.readings if r.origin == fact.origin and r.time <= fact.time]
    return max(before, key=lambda r: (r.time, r.sequence)).wind if before else None


def _windy(world: World) -> list[Row]:
    rows: list[Row] = []
    for flight, facts in _by(world.facts, _flight).items():
        winds = [w for w in (wind_at(world, f) for f in facts) if w is not None]
        rows.append({"flight": flight, "strongest": max(winds, default=None), "known": len(winds)})
    return rows


def _united(world: World) -> list[Row]:
    rows: dict[str, Fact] = {}
    for fact in sorted(world.facts, key=_order):
        rows[f"f-{fact.flight}"] = fact
        if fact.carrier is not None:
            rows[f"c-{fact.carrier}"] = fact
    return [{"name": name, "position": fact.position} for name, fact in rows.items()]


def _moved(world: World) -> list[Row]:
    groups: dict[int, list[str]] = defaultdict(list)
    for flight, facts in _by(world.facts, _flight).items():
        groups[len(facts)].append(str(flight))
    return [{"n": n, "flights": len(found)} for n, found in groups.items()]


BEFORE = "b.occurred_at > a.occurred_at AND b.occurred_at <= a.occurred_at + INTERVAL 10 MINUTES"
PAIRS = f"{FROM} a JOIN STREAM events.flight.departed b ON b.flight = a.flight AND {BEFORE}"

CASES = {
    "groups": _case(
        "groups",
        "carrier",
        "SELECT carrier, COUNT(*) AS n, COUNT(delay) AS known, SUM(delay) AS total, "
        "AVG(delay) AS mean, SUM(distance) AS far, COUNT(DISTINCT flight) AS flights, "
        "flight AS last, BOOL_OR(delay = 3) AS some, MAX(distance) AS wide "
        f"FROM (SELECT carrier, flight, delay, distance {FROM}) x GROUP BY carrier",
        _grouped,
    ),
    "hopping, then by window": _case(
        "busiest",
        "start",
        "WITH counted AS (SELECT flight, window_start AS start, COUNT(*) AS n "
        f"{FROM} GROUP BY flight, HOP(occurred_at, '10 minutes', '25 minutes')) "
        "SELECT start, MAX(n) AS most FROM counted GROUP BY start",
        _hopping,
    ),
    "cumulating": _case(
        "cumulated",
        "until",
        "SELECT window_end AS until, COUNT(*) AS n, COUNT(DISTINCT flight) AS flights "
        f"FROM (SELECT flight, occurred_at {FROM}) x "
        "GROUP BY CUMULATE(occurred_at, '10 minutes', '30 minutes')",
        _cumulated,
    ),
    "sessions": _case(
        "sessions",
        "flight, window_start",
        "SELECT flight, window_start, window_end, COUNT(*) AS n, SUM(distance) AS far, "
        f"origin AS last {FROM} GROUP BY flight, SESSION(occurred_at, '10 minutes') HAVING n > 1",
        _sessions,
    ),
    "over a range": _case(
        "ranged",
        "position",
        "SELECT position, COUNT(*) OVER w AS n, SUM(distance) OVER w AS far, "
        f"SUM(delay) OVER w AS late {FROM}".replace(
            "OVER w",
            "OVER (PARTITION BY flight ORDER BY occurred_at "
            "RANGE BETWEEN INTERVAL 10 MINUTES PRECEDING AND CURRENT ROW)",
        ),
        _ranged,
    ),
    "over rows": _case(
        "rows",
        "position",
        "SELECT position, ROW_NUMBER() OVER (PARTITION BY flight ORDER BY occurred_at) AS place, "
        "SUM(distance) OVER (PARTITION BY flight ORDER BY occurred_at "
        "ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS far, "
        f"LAG(position) OVER (PARTITION BY flight ORDER BY occurred_at) AS before {FROM}",
        _rows,
    ),
    "over rows before": _case(
        "rows_before",
        "position",
        "SELECT position, COUNT(*) OVER w AS n, SUM(delay) OVER w AS late, "
        "SUM(distance) OVER w AS far, LAST_VALUE(origin) OVER w AS last, "
        "FIRST_VALUE(carrier) OVER o AS opened, LAG(delay, 1, -1) OVER o AS late_before "
        f"{FROM}".replace(
            "OVER w",
            "OVER (PARTITION BY flight ORDER BY occurred_at "
            "ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING)",
        ).replace("OVER o", "OVER (PARTITION BY flight ORDER BY occurred_at)"),
        _before,
    ),
    "values in ascending order": _case(
        "ascending",
        "flight",
        "SELECT flight, STRING_AGG(origin, '|') AS origins, MEDIAN(delay) AS middle, "
        "STRING_AGG(DISTINCT carrier, ',') AS carriers, PERCENTILE(distance, 0.9) AS far, "
        "STDDEV(delay) AS spread, VAR_POP(distance) FILTER (WHERE distance > 1) AS wide "
        f"FROM (SELECT flight, origin, carrier, delay, distance {FROM}) x GROUP BY flight",
        _ascending,
    ),
    "known values": _case(
        "known",
        "position",
        "SELECT position, LAST_VALUE(delay) IGNORE NULLS OVER (PARTITION BY flight "
        "ORDER BY occurred_at ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS last, "
        "FIRST_VALUE(delay) IGNORE NULLS OVER (PARTITION BY flight ORDER BY occurred_at "
        f"ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS first {FROM}",
        _known,
    ),
    "neighbours that are not there": _case(
        "neighbours",
        "position",
        "SELECT position, LAG(position, 1, 0) OVER w AS before, LEAD(distance, 2, 0.5) OVER w AS "
        "far, LEAD(carrier, 2, 'it''s none') OVER w AS name, LAG(delay = 3, 1, false) OVER w AS "
        f"late {FROM}".replace("OVER w", "OVER (PARTITION BY flight ORDER BY occurred_at)"),
        _neighbours,
    ),
    "top of each group": _case(
        "top",
        "origin, place",
        "SELECT origin, ROW_NUMBER() OVER (PARTITION BY origin ORDER BY distance DESC) AS place, "
        f"position {FROM} QUALIFY place <= 2",
        _top,
    ),
    "ranks": _case(
        "ranks",
        "position",
        "SELECT position, RANK() OVER (PARTITION BY origin ORDER BY distance DESC) AS r, "
        f"DENSE_RANK() OVER (PARTITION BY origin ORDER BY distance DESC) AS d {FROM}",
        _ranks,
    ),
    "count windows": _case(
        "counted",
        "flight, number",
        "SELECT flight, number, COUNT(*) AS n, SUM(distance) AS far FROM (SELECT flight, distance, "
        "(ROW_NUMBER() OVER (PARTITION BY flight ORDER BY occurred_at) - 1) DIV 3 AS number "
        f"{FROM}) numbered GROUP BY flight, number",
        counted_windows,
    ),
    "two streams": _case(
        "paired",
        "p, q",
        "SELECT a.position AS p, b.position AS q, "
        f"coalesce(b.delay, 0) - coalesce(a.delay, 0) AS apart {PAIRS}",
        _paired,
    ),
    "two streams, left": _case(
        "followed",
        "p",
        f"SELECT a.position AS p, b.position AS q {PAIRS.replace('JOIN', 'LEFT JOIN')}",
        _left,
    ),
    "semi": _case(
        "warned",
        "p",
        f"SELECT a.position AS p {FROM} a WHERE EXISTS (SELECT 1 {FROM} b "
        "WHERE b.flight = a.flight AND b.occurred_at < a.occurred_at AND b.delay > 0)",
        lambda world: _kept(world, met=True),
    ),
    "anti": _case(
        "unwarned",
        "p",
        f"SELECT a.position AS p {FROM} a LEFT ANTI JOIN STREAM events.flight.departed b "
        "ON b.flight = a.flight AND b.occurred_at < a.occurred_at AND b.delay > 0",
        lambda world: _kept(world, met=False),
    ),
    "in": _case(
        "late_places",
        "position",
        f"SELECT position {FROM} WHERE origin IN (SELECT origin {FROM} WHERE delay = 3)",
        _in,
    ),
    "as of, then grouped": _case(
        "windy",
        "flight",
        "SELECT flight, MAX(wind) AS strongest, COUNT(wind) AS known FROM (SELECT e.flight, w.wind "
        f"{FROM} e LEFT JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w "
        "ON w.origin = e.origin) x GROUP BY flight",
        _windy,
    ),
    "union": _case(
        "united",
        "name",
        f"SELECT concat('f-', flight) AS name, position {FROM} UNION ALL "
        f"SELECT concat('c-', carrier), position {FROM} WHERE carrier IS NOT NULL",
        _united,
    ),
    "when, groups": Case(
        "CREATE PROJECTION busy WITH (key = 'carrier', emit = 'when n >= 2 AND total > 0') AS "
        f"SELECT carrier, COUNT(*) AS n, SUM(delay) AS total {FROM} GROUP BY carrier",
        lambda world: [
            {name: row[name] for name in ("carrier", "n", "total")}
            for row in _grouped(world)
            if int(str(row["n"])) >= 2 and isinstance(row["total"], int) and row["total"] > 0
        ],
    ),
    "when, newest": Case(
        "CREATE PROJECTION late WITH (key = flight, emit = 'when delay > 0') AS "
        f"SELECT flight, position, delay {FROM}",
        lambda world: [
            {"flight": facts[-1].flight, "position": facts[-1].position, "delay": facts[-1].delay}
            for facts in _by(world.facts, _flight).values()
            if (facts[-1].delay or 0) > 0
        ],
    ),
    "rows that move between groups": _case(
        "moved",
        "n",
        "SELECT n, COUNT(*) AS flights FROM "
        f"(SELECT flight, COUNT(*) AS n {FROM} GROUP BY flight) x GROUP BY n",
        _moved,
    ),
}
