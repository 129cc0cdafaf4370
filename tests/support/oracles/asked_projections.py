"""Subqueries asked for each value around them, moved windows and windows of rows, in Python too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal

from tests.support.oracles.region_projections import FROM, Case
from tests.support.oracles.sql_world import Fact, Row, World

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00")


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _of_each(name: str, value: Callable[[World, Fact], object]) -> Callable[[World], list[Row]]:
    return lambda world: [{"position": f.position, name: value(world, f)} for f in world.facts]


def _chosen(choose: Callable[[World, Fact], bool]) -> Callable[[World], list[Row]]:
    return lambda world: [{"position": f.position} for f in world.facts if choose(world, f)]


def _less(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def _is_other(one: str | None, other: str | None) -> bool:
    return one is not None and other is not None and one != other


def _so_far(world: World, fact: Fact) -> int | None:
    known = [
        g.delay
        for g in world.facts
        if g.origin == fact.origin and g.time <= fact.time and g.delay is not None
    ]
    return sum(known) if known else None


def _before(world: World, fact: Fact) -> str | None:
    earlier = [g for g in world.facts if g.origin == fact.origin and g.time < fact.time]
    # Of rows of one time the first one comes first.
    return max(earlier, key=lambda g: (g.time, -g.position)).flight if earlier else None


def _more(world: World, fact: Fact) -> int | None:
    found = [
        g.delay - fact.delay
        for g in world.facts
        if g.delay is not None and fact.delay is not None and g.position < fact.position
    ]
    return sum(found) if found else None


def _of_others(world: World, fact: Fact) -> bool:
    others = [g.delay for g in world.facts if _is_other(g.carrier, fact.carrier)]
    return fact.origin == "JFK" or any(_less(fact.delay, each) for each in others)


def _none_alike(world: World, fact: Fact) -> bool:
    def may_be_same(other: Fact) -> bool:
        sides = ((fact.carrier, other.carrier), (fact.delay, other.delay))
        return all(one is None or two is None or one == two for one, two in sides)

    return fact.origin == "JFK" or not any(may_be_same(g) for g in world.facts if g.distance == 1)


def _often(world: World, fact: Fact) -> bool:
    origins = Counter(
        g.origin for g in world.facts if fact.carrier is not None and g.carrier == fact.carrier
    )
    return any(n > 1 for n in origins.values())


def _commonest(world: World, fact: Fact) -> int | None:
    known = Counter(g.delay for g in world.facts if g.origin == fact.origin and g.delay is not None)
    return min(known, key=lambda delay: (-known[delay], delay)) if known else None


def _first_two(world: World) -> list[Row]:
    rows: list[Row] = []
    for fact in world.facts:
        below = [g for g in world.facts if _less(g.delay, fact.delay)]
        below.sort(key=lambda g: (-(g.delay or 0), g.position))
        rows += [{"position": fact.position, "other": g.position} for g in below[:2]]
    return rows


def _alike(world: World) -> list[Row]:
    return [
        {"one": f.position, "other": g.position}
        for f in world.facts
        for g in world.facts
        if (f.carrier, f.delay) == (g.carrier, g.delay) and f.position < g.position
    ]


def _starts(time: datetime, step: int, size: int, offset: int = 0) -> Iterator[datetime]:
    """Yield the starts of the windows that a time is in, by lengths in minutes."""
    behind = (time - _EPOCH - timedelta(minutes=offset)) % timedelta(minutes=step)
    start = time - behind
    while start + timedelta(minutes=size) > time:
        yield start
        start -= timedelta(minutes=step)


def _counted(step: int, size: int, offset: int) -> Callable[[World], list[Row]]:
    def oracle(world: World) -> list[Row]:
        found = Counter(
            (f.origin, start) for f in world.facts for start in _starts(f.time, step, size, offset)
        )
        return [
            {
                "origin": origin,
                "window_start": start,
                "window_end": start + timedelta(minutes=size),
                "n": n,
            }
            for (origin, start), n in found.items()
        ]

    return oracle


def _in_each(world: World) -> list[Row]:
    return [
        {
            "position": f.position,
            "window_start": start,
            "window_end": start + timedelta(minutes=25),
            "delay": f.delay,
        }
        for f in world.facts
        for start in _starts(f.time, 10, 25)
    ]


def _growing(world: World) -> list[Row]:
    totals: dict[datetime, list[int]] = defaultdict(list)
    for fact in world.facts:
        (start,) = _starts(fact.time, 30, 30, 5)
        for place in range(3):
            end = start + timedelta(minutes=10 * (place + 1))
            if end > fact.time:
                totals[end].append(fact.position)
    return [{"window_end": end, "n": len(each)} for end, each in totals.items()]


def _in_same(world: World) -> list[Row]:
    return [
        {"one": f.position, "other": g.position, "window_start": start}
        for f in world.facts
        for g in world.facts
        if f.flight == g.flight and f.position < g.position
        for start in {*_starts(f.time, 10, 20)} & {*_starts(g.time, 10, 20)}
    ]


def _by_distance(world: World) -> list[Row]:
    found: dict[float, list[Fact]] = defaultdict(list)
    for fact in world.facts:
        found[fact.distance].append(fact)
    return [
        {"first": min(f.position for f in facts), "n": len(facts), "distance": distance}
        for distance, facts in found.items()
    ]


def _of_distinct(world: World) -> list[Row]:
    rows: list[Row] = []
    for fact in world.facts:
        own = [g for g in world.facts if g.flight == fact.flight]
        own.sort(key=lambda g: (g.time, g.position))
        known = {g.delay for g in own if g.delay is not None}
        place = own.index(fact)
        near = {g.delay for g in own[max(0, place - 1) : place + 1] if g.delay is not None}
        rows.append(
            {
                "position": fact.position,
                "total": sum(known) if known else None,
                "mean": sum(near) / len(near) if near else None,
                "exact": Decimal(sum(known)) if known else None,
            }
        )
    return rows


def _by_either(world: World) -> list[Row]:
    counts = Counter((fact.origin, "all") for fact in world.facts)
    counts += Counter(("all", fact.flight) for fact in world.facts)
    return [{"origin": o, "flight": f, "n": n} for (o, f), n in counts.items()]


_OF = "events.flight.departed, DESCRIPTOR(occurred_at)"
_HOP = f"TABLE(HOP(TABLE STREAM {_OF}, INTERVAL '10' MINUTES, INTERVAL '20' MINUTES))"

ASKED = {
    "how many are less": _case(
        "how_many",
        "position",
        f"SELECT position, (SELECT COUNT(*) {FROM} o WHERE o.delay < a.delay) AS n {FROM} a",
        _of_each("n", lambda w, f: sum(_less(g.delay, f.delay) for g in w.facts)),
    ),
    "a total so far": _case(
        "so_far",
        "position",
        f"SELECT position, (SELECT SUM(o.delay) {FROM} o WHERE o.origin = a.origin "
        f"AND o.occurred_at <= a.occurred_at) AS total {FROM} a",
        _of_each("total", _so_far),
    ),
    "the row before": _case(
        "row_before",
        "position",
        f"SELECT position, (SELECT o.flight {FROM} o WHERE o.origin = a.origin AND o.occurred_at "
        f"< a.occurred_at ORDER BY o.occurred_at DESC LIMIT 1) AS before {FROM} a",
        _of_each("before", _before),
    ),
    "differences from those before": _case(
        "differences",
        "position",
        f"SELECT position, (SELECT SUM(o.delay - a.delay) {FROM} o WHERE o.position < a.position) "
        f"AS more {FROM} a",
        _of_each("more", _more),
    ),
    "less, or not known": _case(
        "or_not_known",
        "position",
        f"SELECT position, (SELECT COUNT(*) {FROM} o WHERE o.delay < a.delay OR a.delay IS NULL) "
        f"AS n {FROM} a",
        _of_each(
            "n", lambda w, f: sum(f.delay is None or _less(g.delay, f.delay) for g in w.facts)
        ),
    ),
    "exists of others, or": _case(
        "of_others",
        "position",
        f"SELECT a.position {FROM} a WHERE a.origin = 'JFK' OR EXISTS (SELECT 1 {FROM} o "
        "WHERE o.delay > a.delay AND o.carrier <> a.carrier)",
        _chosen(_of_others),
    ),
    "two columns not in, or": _case(
        "none_alike",
        "position",
        f"SELECT a.position {FROM} a WHERE a.origin = 'JFK' OR (a.carrier, a.delay) NOT IN "
        f"(SELECT carrier, delay {FROM} WHERE distance = 1)",
        _chosen(_none_alike),
    ),
    "exists of groups": _case(
        "often",
        "position",
        f"SELECT a.position {FROM} a WHERE EXISTS (SELECT o.origin {FROM} o "
        "WHERE o.carrier = a.carrier GROUP BY o.origin HAVING COUNT(*) > 1)",
        _chosen(_often),
    ),
    "exists of groups by a number": _case(
        "often_numbered",
        "position",
        f"SELECT a.position {FROM} a WHERE EXISTS (SELECT o.origin {FROM} o "
        "WHERE o.carrier = a.carrier GROUP BY 1 HAVING COUNT(*) > 1)",
        _chosen(_often),
    ),
    "exists of groups by an alias": _case(
        "often_named",
        "position",
        f"SELECT a.position {FROM} a WHERE EXISTS (SELECT upper(o.origin) AS place, COUNT(*) AS n "
        f"{FROM} o WHERE o.carrier = a.carrier GROUP BY place HAVING n > 1)",
        _chosen(_often),
    ),
    "how many are nearer": _case(
        "nearer",
        "position",
        f"SELECT position, (SELECT COUNT(*) {FROM} o WHERE o.distance < a.distance) AS n {FROM} a",
        _of_each("n", lambda w, f: sum(g.distance < f.distance for g in w.facts)),
    ),
    "groups of a floating-point number": _case(
        "by_distance",
        "first",
        f"SELECT first, n, distance FROM (SELECT MIN(position) AS first, COUNT(*) AS n, distance "
        f"{FROM} GROUP BY distance) q",
        _by_distance,
    ),
    "totals of distinct values around": _case(
        "of_distinct",
        "position",
        "SELECT position, SUM(DISTINCT delay) OVER (PARTITION BY flight) AS total, "
        "AVG(DISTINCT delay) OVER (PARTITION BY flight ORDER BY occurred_at ROWS BETWEEN 1 "
        "PRECEDING AND CURRENT ROW) AS mean, SUM(DISTINCT CAST(delay AS DECIMAL(10, 0))) OVER "
        f"(PARTITION BY flight) AS exact {FROM}",
        _of_distinct,
    ),
    "sets of a list of groups": _case(
        "by_either",
        "origin, flight",
        "SELECT coalesce(origin, 'all') AS origin, coalesce(flight, 'all') AS flight, "
        f"COUNT(*) AS n {FROM} GROUP BY origin, flight GROUPING SETS ((origin), (flight))",
        _by_either,
    ),
    "not exists, the first one": _case(
        "none_worse",
        "position",
        f"SELECT a.position {FROM} a WHERE NOT EXISTS (SELECT DISTINCT o.flight {FROM} o "
        "WHERE o.delay > a.delay ORDER BY o.flight LIMIT 1)",
        _chosen(lambda w, f: not any(_less(f.delay, g.delay) for g in w.facts)),
    ),
    "lateral, the first two below": _case(
        "first_two",
        "position, other",
        f"SELECT a.position, t.other {FROM} a, LATERAL (SELECT o.position AS other {FROM} o "
        "WHERE o.delay < a.delay ORDER BY o.delay DESC, o.position LIMIT 2) t",
        _first_two,
    ),
    "lateral, a total of less": _case(
        "lateral_total",
        "position",
        f"SELECT a.position, t.n {FROM} a, LATERAL (SELECT COUNT(*) AS n {FROM} o "
        "WHERE o.delay < a.delay) t",
        _of_each("n", lambda w, f: sum(_less(g.delay, f.delay) for g in w.facts)),
    ),
    "the commonest of a partition": _case(
        "commonest",
        "position",
        f"SELECT position, MODE(delay) OVER (PARTITION BY origin) AS most {FROM}",
        _of_each("most", _commonest),
    ),
    "not distinct": _case(
        "alike",
        "one, other",
        f"SELECT a.position AS one, b.position AS other {FROM} a JOIN STREAM "
        "events.flight.departed b ON a.carrier IS NOT DISTINCT FROM b.carrier "
        "AND a.delay <=> b.delay AND a.position < b.position",
        _alike,
    ),
    "tumble, moved": _case(
        "tumbled",
        "origin, window_start",
        f"SELECT origin, window_start, window_end, COUNT(*) AS n {FROM} "
        "GROUP BY origin, TUMBLE(occurred_at, '20 minutes', '5 minutes')",
        _counted(20, 20, 5),
    ),
    "hop, moved back": _case(
        "hopped",
        "origin, window_start",
        "SELECT origin, window_start, window_end, COUNT(*) AS n "
        f"FROM TABLE(HOP(TABLE STREAM {_OF}, INTERVAL '10' MINUTES, INTERVAL '20' MINUTES, "
        "INTERVAL '-3' MINUTES)) "
        "GROUP BY origin, window_start, window_end",
        _counted(10, 20, 7),
    ),
    "windows of each row": _case(
        "in_each",
        "position, window_start",
        f"SELECT position, window_start, window_end, delay FROM TABLE(HOP(TABLE STREAM {_OF}, "
        "INTERVAL '10' MINUTES, INTERVAL '25' MINUTES))",
        _in_each,
    ),
    "growing windows of rows": _case(
        "growing",
        "window_end",
        "SELECT window_end, COUNT(*) AS n FROM (SELECT position, window_end FROM TABLE(CUMULATE("
        f"TABLE STREAM {_OF}, INTERVAL '10' MINUTES, INTERVAL '30' MINUTES, INTERVAL '5' MINUTES)))"
        " GROUP BY window_end",
        _growing,
    ),
    "rows of the same windows": _case(
        "in_same",
        "one, other, window_start",
        f"SELECT l.position AS one, r.position AS other, l.window_start FROM (SELECT * FROM {_HOP})"
        f" l JOIN (SELECT * FROM {_HOP}) r ON l.flight = r.flight AND l.position < r.position "
        "AND l.window_start = r.window_start AND l.window_end = r.window_end",
        _in_same,
    ),
}
