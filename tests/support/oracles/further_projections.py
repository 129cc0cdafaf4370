"""Set operations, outer joins, sets of groups, values of subqueries: each in plain Python too."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from tests.support.oracles.region_projections import FROM, Case
from tests.support.oracles.sql_world import START, Fact, Row, World

STREAM = "STREAM events.flight.departed"
NEAR = (
    f"{STREAM} b ON b.flight = a.flight AND b.occurred_at > a.occurred_at "
    "AND b.occurred_at <= a.occurred_at + INTERVAL 10 MINUTES AND a.distance > 0"
)
WEATHER = "weather FOR SYSTEM_TIME AS OF e.occurred_at w"
TEN = timedelta(minutes=10)
_Group = tuple[object, ...]


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _pairs(facts: Iterable[Fact], holds: Callable[[Fact], bool]) -> set[tuple[str, str]]:
    return {(fact.flight, fact.origin) for fact in facts if holds(fact)}


def _places(pairs: set[tuple[str, str]]) -> list[Row]:
    return [{"flight": flight, "origin": origin} for flight, origin in pairs]


def _late(fact: Fact) -> bool:
    return (fact.delay or 0) > 0


def _intersect(world: World) -> list[Row]:
    far = _pairs(world.facts, lambda fact: fact.distance >= 1)
    return _places(_pairs(world.facts, _late) & far)


def _except(world: World) -> list[Row]:
    everywhere = _pairs(world.facts, lambda fact: True)
    return _places(everywhere - _pairs(world.facts, _late))


def _counted_pairs(world: World, *, alone: bool) -> list[Row]:
    everywhere = Counter((fact.flight, fact.carrier) for fact in world.facts)
    late = Counter((fact.flight, fact.carrier) for fact in world.facts if _late(fact))
    left = everywhere - late if alone else everywhere & late
    return [
        {"flight": flight, "carrier": carrier or "none", "n": n}
        for (flight, carrier), n in left.items()
    ]


def _not_in(world: World, given: list[str | None]) -> list[Row]:
    """A row passes where nothing is given, or where it is known to be none of what is."""
    return [
        {"position": fact.position}
        for fact in world.facts
        if not given
        or (fact.carrier is not None and None not in given and fact.carrier not in given)
    ]


def _across(world: World) -> list[Row]:
    def of(facts: list[Fact], origin: str) -> tuple[int | None, int | None]:
        found = [fact for fact in facts if fact.origin == origin]
        return _total(found), len(found) or None

    rows: list[Row] = []
    for key, facts in _sets(world, [lambda f: (f.flight,)]).items():
        (late, n), (further, m) = of(facts, "JFK"), of(facts, "LGA")
        rows.append(
            {"flight": key[0], "jfk_late": late, "jfk_n": n, "LGA_late": further, "LGA_n": m}
        )
    return rows


def _across_by_carrier(world: World) -> list[Row]:
    rows: list[Row] = []
    for key, facts in _sets(world, [lambda f: (f.flight,)]).items():
        row: Row = {"flight": key[0]}
        for origin in ("JFK", "LGA"):
            found = [fact.carrier for fact in facts if fact.origin == origin]
            row[f"{origin}_n"] = len(found)
            row[f"{origin}_c"] = max((each for each in found if each is not None), default=None)
        rows.append(row)
    return rows


PLACES = "(VALUES ('JFK', 'Kennedy', 1), ('LGA', NULL, 2), (NULL, 'nowhere', 3)) v(code, name, far)"
_PLACES: dict[str, tuple[str | None, int]] = {"JFK": ("Kennedy", 1), "LGA": (None, 2)}


def _in_places(world: World) -> list[Row]:
    """A row whose place is later than it, and of the flights of JFK those that are not AA."""
    rows: list[Row] = []
    for fact in world.facts:
        name, far = _PLACES[fact.origin]
        met = fact.delay is not None and far > fact.delay
        if fact.origin == "JFK" and (fact.carrier is None or fact.carrier != "AA"):
            rows.append(
                {
                    "position": fact.position,
                    "name": name if met else "none",
                    "far": far if met else None,
                }
            )
    return rows


def _with_null(world: World) -> list[Row]:
    return [
        {"position": fact.position, "carrier": fact.carrier}
        for fact in world.facts
        if _late(fact) and fact.distance > 0
    ]


def _near(a: Fact, b: Fact) -> bool:
    later = a.time < b.time <= a.time + TEN
    return a.flight == b.flight and later and a.distance > 0


def _full(world: World) -> list[Row]:
    facts = world.facts
    pairs = [(a.position, b.position) for a in facts for b in facts if _near(a, b)]
    rows = pairs + [(a.position, -1) for a in facts if a.position not in {p for p, _ in pairs}]
    rows += [(-1, b.position) for b in facts if b.position not in {q for _, q in pairs}]
    return [{"p": p, "q": q} for p, q in rows]


def _right(world: World) -> list[Row]:
    return [row for row in _full(world) if row["q"] != -1]


def _sets(
    world: World, keys: Iterable[Callable[[Fact], _Group | None]]
) -> dict[_Group, list[Fact]]:
    groups: dict[_Group, list[Fact]] = defaultdict(list)
    for key in keys:
        for fact in world.facts:
            found = key(fact)
            if found is not None:
                groups[found].append(fact)
    return groups


def _rollup(world: World) -> list[Row]:
    def carrier(fact: Fact) -> str:
        return fact.carrier or "none"

    keys: list[Callable[[Fact], _Group | None]] = [
        lambda f: (carrier(f), f.origin),
        lambda f: (carrier(f), "all"),
        lambda f: ("all", "all"),
    ]
    return [
        {"carrier": key[0], "origin": key[1], "n": len(facts), "total": _total(facts)}
        for key, facts in _sets(world, keys).items()
        if len(facts) > 1
    ]


def _numbers(world: World) -> list[Row]:
    keys: list[Callable[[Fact], _Group | None]] = [
        lambda f: (f.carrier or "none",),
        lambda f: ("all",),
    ]
    return [{"carrier": key[0], "n": len(facts)} for key, facts in _sets(world, keys).items()]


def _total(facts: Iterable[Fact]) -> int | None:
    delays = [fact.delay for fact in facts if fact.delay is not None]
    return sum(delays) if delays else None


def _busiest(world: World) -> list[Row]:
    """Of the groups of each flight, and of all, the one of the most facts."""
    keys: list[Callable[[Fact], _Group | None]] = [
        lambda f: (f.flight, f.origin),
        lambda f: (f.flight, "all"),
        lambda f: ("all", "all"),
    ]
    groups = _sets(world, keys)
    most: dict[object, int] = defaultdict(int)
    for key, facts in groups.items():
        most[key[0]] = max(most[key[0]], len(facts))
    return [
        {"flight": key[0], "origin": key[1], "total": _total(facts)}
        for key, facts in groups.items()
        if len(facts) == most[key[0]]
    ]


def _placed(world: World) -> list[Row]:
    """Flights by the facts that they have, among those of their greatest origin, the first two."""
    flights = _sets(world, [lambda f: (f.flight,)])
    counts = [(key[0], max(f.origin for f in facts), len(facts)) for key, facts in flights.items()]
    return [
        {"flight": flight, "n": n, "r": r, "share": n / len(world.facts)}
        for flight, place, n in counts
        if (r := 1 + sum(1 for _, p, m in counts if p == place and m > n)) <= 2
    ]


def _counted_together(world: World) -> list[Row]:
    known = [f for f in world.facts if f.carrier is not None]
    pairs = [f for f in known if f.delay is not None]
    return [
        {
            "flight": flight,
            "c": len({(f.carrier, f.position % 3, f.origin) for f in known if f.flight == flight}),
            "n": sum(1 for f in pairs if f.flight == flight),
            "d": len(
                {(f.carrier, f.delay) for f in pairs if f.flight == flight and f.distance > 0}
            ),
        }
        for flight in {f.flight for f in world.facts}
    ]


def _most(world: World) -> list[Row]:
    flights = _sets(world, [lambda f: (f.flight,)])
    ordered = sorted(
        flights.items(), key=lambda each: (-len(each[1]), -max(f.position for f in each[1]))
    )
    return [{"flight": key[0], "n": len(facts)} for key, facts in ordered[1:3]]


def _latest(world: World) -> list[Row]:
    known = [(-f.delay, f.minute, f.position) for f in world.facts if f.delay is not None]
    return [{"position": position, "late": -late} for late, _, position in sorted(known)[:3]]


def _quarter(fact: Fact) -> datetime:
    return START + (fact.time - START) // timedelta(minutes=15) * timedelta(minutes=15)


def _cube(world: World) -> list[Row]:
    keys: list[Callable[[Fact], _Group | None]] = [
        lambda f: (_quarter(f), f.flight, f.origin),
        lambda f: (_quarter(f), f.flight, "all"),
        lambda f: (_quarter(f), "all", f.origin),
        lambda f: (_quarter(f), "all", "all"),
    ]
    return [
        {"start": key[0], "flight": key[1], "origin": key[2], "n": len(facts)}
        for key, facts in _sets(world, keys).items()
    ]


def _grouping_sets(world: World) -> list[Row]:
    keys: list[Callable[[Fact], _Group | None]] = [
        lambda f: ("flight", f.flight),
        lambda f: ("origin", f.origin.lower()),
    ]
    return [
        {"what": key[0], "name": key[1], "far": max(fact.distance for fact in facts)}
        for key, facts in _sets(world, keys).items()
    ]


def _above(world: World) -> list[Row]:
    known = [f.delay for f in world.facts if f.origin == "JFK" and f.delay is not None]
    late = sum(1 for f in world.facts if f.delay == 3)
    return [
        {"position": f.position, "late": late, "above": f.delay - max(known)}
        for f in world.facts
        if known and f.delay is not None and f.delay >= max(known)
    ]


def _worst(world: World) -> list[Row]:
    facts, worst = world.facts, defaultdict(list)
    for f in facts:
        if f.carrier is not None and f.delay is not None:
            worst[f.carrier].append(f.delay)
    return [
        {
            "position": a.position,
            "late": sum(1 for b in facts if b.flight == a.flight and (b.delay or 0) > 0),
            "far": max(
                (b.distance for b in facts if b.origin == a.origin and (b.delay or 0) > 2),
                default=None,
            ),
        }
        for a in facts
        if a.carrier is not None and a.delay is not None and a.delay >= max(worst[a.carrier])
    ]


def _wind(world: World, fact: Fact) -> int | None:
    before = [r for r in world.readings if r.origin == fact.origin and r.time <= fact.time]
    return max(before, key=lambda r: (r.time, r.sequence)).wind if before else None


def _windier(world: World) -> list[Row]:
    return [
        {"position": fact.position, "wind": wind}
        for fact in world.facts
        if (wind := _wind(world, fact)) is not None and fact.delay is not None and wind > fact.delay
    ]


def _blown(world: World, *, met: bool) -> list[Row]:
    return [
        {"position": fact.position}
        for fact in world.facts
        if ((_wind(world, fact) or 0) > 1) == met
    ]


def _wind_of_each(world: World) -> list[Row]:
    return [{"position": fact.position, "wind": _wind(world, fact)} for fact in world.facts]


ALL_CARRIERS = "CASE WHEN GROUPING(e.carrier) = 1 THEN 'all' ELSE coalesce(carrier, 'none') END"
FURTHER = {
    "intersect": _case(
        "late_and_far",
        "flight, origin",
        f"SELECT flight, origin {FROM} WHERE delay > 0 "
        f"INTERSECT SELECT flight, origin {FROM} WHERE distance >= 1",
        _intersect,
    ),
    "except": _case(
        "never_late",
        "flight, origin",
        f"SELECT flight, origin {FROM} EXCEPT SELECT flight, origin {FROM} WHERE delay > 0",
        _except,
    ),
    "intersect of NULL": _case(
        "late_carriers",
        "position",
        f"SELECT position, carrier {FROM} WHERE delay > 0 "
        f"INTERSECT SELECT position, carrier {FROM} WHERE distance > 0",
        _with_null,
    ),
    "except all": _case(
        "more_than_late",
        "flight, carrier",
        "SELECT flight, coalesce(carrier, 'none') AS carrier, COUNT(*) AS n FROM ("
        f"SELECT flight, carrier {FROM} EXCEPT ALL SELECT flight, carrier {FROM} WHERE delay > 0"
        ") x GROUP BY flight, carrier",
        lambda world: _counted_pairs(world, alone=True),
    ),
    "intersect all": _case(
        "as_often_late",
        "flight, carrier",
        "SELECT flight, coalesce(carrier, 'none') AS carrier, COUNT(*) AS n FROM ("
        f"SELECT flight, carrier {FROM} WHERE delay > 0 INTERSECT ALL SELECT flight, carrier {FROM}"
        ") x GROUP BY flight, carrier",
        lambda world: _counted_pairs(world, alone=False),
    ),
    "not in": _case(
        "other_carriers",
        "position",
        f"SELECT position {FROM} WHERE carrier NOT IN "
        f"(SELECT carrier {FROM} WHERE delay = 1 AND flight = 'f2')",
        lambda world: _not_in(
            world, [f.carrier for f in world.facts if f.delay == 1 and f.flight == "f2"]
        ),
    ),
    "not in, without NULL": _case(
        "other_known_carriers",
        "position",
        f"SELECT position {FROM} WHERE carrier NOT IN "
        f"(SELECT a.carrier {FROM} a WHERE delay = 3 AND a.carrier IS NOT NULL)",
        lambda world: _not_in(
            world, [f.carrier for f in world.facts if f.delay == 3 and f.carrier]
        ),
    ),
    "pivot": _case(
        "across",
        "flight",
        "SELECT p.flight, jfk_late, jfk_n, LGA_late, p.LGA_n FROM "
        f"(SELECT flight, origin, delay {FROM}) x PIVOT (SUM(x.delay) AS late, COUNT(*) AS n "
        "FOR origin IN ('JFK' AS jfk, 'LGA')) p",
        _across,
    ),
    "pivot, beside a text": _case(
        "across_by_carrier",
        "flight",
        "SELECT flight, JFK_n, JFK_c, LGA_n, LGA_c FROM "
        f"(SELECT flight, origin, carrier {FROM}) PIVOT (COUNT(*) AS n, MAX(carrier) AS c "
        "FOR origin IN ('JFK', 'LGA'))",
        _across_by_carrier,
    ),
    "values": _case(
        "in_places",
        "position",
        f"SELECT position, coalesce(v.name, 'none') AS name, v.far {FROM} e "
        f"LEFT JOIN {PLACES} ON v.code = e.origin AND v.far > e.delay "
        "JOIN (VALUES ('JFK'), ('EWR')) AS w(origin) USING (origin) LEFT ANTI JOIN "
        "(VALUES ('AA', 'JFK')) n(carrier, code) ON n.carrier = e.carrier AND n.code = w.origin",
        _in_places,
    ),
    "full": _case(
        "met",
        "p, q",
        "SELECT coalesce(a.position, -1L) AS p, coalesce(b.position, -1L) AS q "
        f"FROM {STREAM} a FULL OUTER JOIN {NEAR}",
        _full,
    ),
    "full behind another join": _case(
        "met_again",
        "p, q",
        "SELECT coalesce(a.position, -1L) AS p, coalesce(b.position, -1L) AS q "
        f"FROM {STREAM} a JOIN {STREAM} c ON c.origin = a.origin AND c.position = a.position "
        f"FULL JOIN {NEAR}",
        _full,
    ),
    "right behind another join": _case(
        "followers_again",
        "p, q",
        "SELECT coalesce(a.position, -1L) AS p, b.position AS q "
        f"FROM {STREAM} a JOIN {STREAM} c ON c.origin = a.origin AND c.position = a.position "
        f"RIGHT JOIN {NEAR}",
        _right,
    ),
    "right": _case(
        "followers",
        "p, q",
        f"SELECT coalesce(a.position, -1L) AS p, b.position AS q FROM {STREAM} a RIGHT JOIN {NEAR}",
        _right,
    ),
    "rollup": _case(
        "rolled",
        "carrier, origin",
        f"SELECT {ALL_CARRIERS} AS carrier, coalesce(origin, 'all') AS origin, COUNT(*) AS n, "
        f"SUM(delay) AS total {FROM} e GROUP BY ROLLUP(carrier, origin) HAVING n > 1",
        _rollup,
    ),
    "rollup of counts": _case(
        "numbers",
        "carrier",
        "SELECT CASE WHEN GROUPING(carrier) = 1 THEN 'all' ELSE coalesce(carrier, 'none') END AS "
        f"carrier, COUNT(*) AS n {FROM} GROUP BY ROLLUP(carrier)",
        _numbers,
    ),
    "cube": _case(
        "cubed",
        "start, flight, origin",
        "SELECT window_start AS start, coalesce(flight, 'all') AS flight, "
        f"coalesce(origin, 'all') AS origin, COUNT(*) AS n {FROM} "
        "GROUP BY TUMBLE(occurred_at, '15 minutes'), CUBE(flight, origin)",
        _cube,
    ),
    "qualify of a rollup": _case(
        "busiest_of_each",
        "flight, origin",
        "SELECT coalesce(flight, 'all') AS flight, coalesce(origin, 'all') AS origin, "
        f"SUM(delay) AS total {FROM} e GROUP BY ROLLUP(e.flight, e.origin) "
        "QUALIFY RANK() OVER (PARTITION BY e.flight ORDER BY COUNT(*) DESC) = 1",
        _busiest,
    ),
    "over groups": _case(
        "placed",
        "flight",
        "SELECT RANK() OVER (PARTITION BY MAX(origin) ORDER BY COUNT(*) DESC) AS r, flight, "
        f"COUNT(*) AS n, COUNT(*) / SUM(COUNT(*)) OVER () AS share {FROM} GROUP BY 2 "
        "QUALIFY r <= 2",
        _placed,
    ),
    "counts of several": _case(
        "counted_together",
        "flight",
        "SELECT flight, COUNT(DISTINCT carrier, position % 3, origin) AS c, COUNT(carrier, delay) "
        f"AS n, COUNT(DISTINCT carrier, delay) FILTER (WHERE distance > 0) AS d {FROM} "
        "GROUP BY flight",
        _counted_together,
    ),
    "first groups": _case(
        "most",
        "flight",
        f"SELECT flight, COUNT(*) AS n {FROM} GROUP BY flight "
        "ORDER BY COUNT(*) DESC, MAX(position) DESC LIMIT 2 OFFSET 1",
        _most,
    ),
    "first rows": _case(
        "latest",
        "position",
        f"SELECT position, delay AS late {FROM} WHERE delay IS NOT NULL ORDER BY late DESC, "
        "occurred_at, 1 FETCH FIRST 3 ROWS ONLY",
        _latest,
    ),
    "grouping sets": _case(
        "named",
        "what, name",
        "SELECT CASE WHEN GROUPING(flight) = 0 THEN 'flight' ELSE 'origin' END AS what, "
        f"coalesce(flight, lower(origin)) AS name, MAX(distance) AS far {FROM} "
        "GROUP BY GROUPING SETS ((flight), (lower(origin)))",
        _grouping_sets,
    ),
    "values of subqueries": _case(
        "above",
        "position",
        f"SELECT position, (SELECT COUNT(*) {FROM} WHERE delay = 3) AS late, "
        f"delay - (SELECT MAX(delay) {FROM} WHERE origin = 'JFK') AS above {FROM} "
        f"WHERE delay >= (SELECT MAX(delay) {FROM} WHERE origin = 'JFK')",
        _above,
    ),
    "values of each": _case(
        "worst",
        "position",
        f"SELECT a.position, (SELECT COUNT(*) {FROM} b WHERE b.flight = a.flight AND b.delay > 0) "
        f"AS late, (SELECT MAX(b.distance) {FROM} b WHERE a.origin = b.origin AND b.delay > 2) AS "
        f"far {FROM} a WHERE a.delay >= (SELECT MAX(b.delay) {FROM} b WHERE b.carrier = a.carrier)",
        _worst,
    ),
    "as of, by order": _case(
        "windier",
        "position",
        f"SELECT DISTINCT e.position, w.wind FROM {STREAM} e JOIN {WEATHER} "
        "ON w.origin = e.origin AND w.wind > e.delay",
        _windier,
    ),
    "as of, semi": _case(
        "blown",
        "position",
        f"SELECT e.position FROM {STREAM} e LEFT SEMI JOIN {WEATHER} "
        "ON w.origin = e.origin AND w.wind > 1",
        lambda world: _blown(world, met=True),
    ),
    "as of, anti": _case(
        "calm",
        "position",
        f"SELECT e.position FROM {STREAM} e LEFT ANTI JOIN {WEATHER} "
        "ON w.origin = e.origin AND w.wind > 1",
        lambda world: _blown(world, met=False),
    ),
    "as of, right": _case(
        "winds",
        "position",
        f"SELECT e.position, w.wind FROM {WEATHER} RIGHT JOIN {STREAM} e ON w.origin = e.origin",
        _wind_of_each,
    ),
}
