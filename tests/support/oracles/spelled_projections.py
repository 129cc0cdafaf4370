"""Spellings that are written as other ones, over the SQL tests' world, each in plain Python too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.support.oracles.region_projections import FROM, Case
from tests.support.oracles.sql_world import Fact, Row, World

_TOP = f"SELECT position, delay {FROM} WHERE delay IS NOT NULL ORDER BY delay DESC"


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _all(held: Iterable[bool | None]) -> bool:
    """SQL's ALL: it holds where each one is known to hold, of none as well."""
    return all(each is True for each in held)


def _less(one: int | None, other: int | None) -> bool | None:
    return None if one is None or other is None else one < other


def _chosen(world: World, choose: Callable[[Fact], bool]) -> list[Row]:
    return [{"position": f.position} for f in world.facts if choose(f)]


def _of(world: World, **wanted: object) -> list[Fact]:
    return [f for f in world.facts if all(getattr(f, n) == v for n, v in wanted.items())]


def _ordered(world: World) -> list[Fact]:
    known = [f for f in world.facts if f.delay is not None]
    return sorted(known, key=lambda f: (-(f.delay or 0), f.time, f.position))


def _first(facts: Iterable[Fact]) -> list[Row]:
    return [{"position": f.position, "delay": f.delay} for f in facts]


def _ties(world: World) -> list[Row]:
    ordered = _ordered(world)
    return _first(f for f in ordered if len(ordered) < 3 or f.delay >= ordered[2].delay)


def _either(world: World) -> list[Row]:
    carriers = {f.carrier for f in world.facts}
    found: dict[object, Row] = {}
    for name in sorted({c for c in carriers if c is not None}):
        here, there = _of(world, carrier=name, origin="JFK"), _of(world, carrier=name, origin="LGA")
        ours, theirs = len(here) or None, len(there) or None
        found[name] = {"carrier": name, "here": ours, "there": theirs}
    return [*found.values()]


def _together(world: World) -> list[Row]:
    rows: list[Row] = []
    for f in world.facts:
        met = sum(g.origin == "LGA" for g in world.facts if g.carrier == f.carrier)
        if met and f.carrier is not None:
            rows.append({"position": f.position, "carrier": f.carrier, "n": met})
    return rows


def _named(world: World) -> list[Row]:
    names = {(f.flight, f.origin) for f in world.facts}
    names |= {(f.flight, f.carrier) for f in world.facts if f.carrier is not None}
    return [{"flight": flight, "name": name} for flight, name in names]


def _later(world: World) -> list[Row]:
    rows: list[Row] = []
    for f in world.facts:
        twice = None if f.delay is None else f.delay * 2
        more = None if twice is None else twice + 1
        rows.append({"position": f.position, "twice": twice, "more": more})
    return rows


def _unpivoted(world: World) -> list[Row]:
    return [
        {"position": f.position, "what": what, "value": value, "carrier": f.carrier}
        for f in world.facts
        for what, value in (("delay", f.delay), ("p", f.position % 3))
        if value is not None
    ]


def _pairs(world: World) -> list[Row]:
    return [
        {"what": what, "n": len(world.facts), "late": sum(values) if values else None}
        for what, values in (
            ("delay_origin", [f.delay for f in world.facts if f.delay is not None]),
            ("other", [f.position for f in world.facts]),
        )
        if world.facts
    ]


def _listed(world: World) -> list[Row]:
    return [
        {"position": f.position, "pos": pos, "n": n}
        for f in world.facts
        for pos, n in enumerate((f.delay, 7))
    ]


SPELLED = {
    "unpivot": _case(
        "unpivoted",
        "position, what",
        "SELECT position, what, value, carrier "
        f"FROM (SELECT position, carrier, delay, CAST(position % 3 AS INT) AS third {FROM}) x "
        "UNPIVOT (value FOR what IN (delay, third AS p))",
        _unpivoted,
    ),
    "unpivot of pairs": _case(
        "unpivoted_pairs",
        "what",
        "SELECT what, COUNT(*) AS n, SUM(number) AS late FROM (SELECT CAST(delay AS BIGINT) AS "
        f"delay, origin, position, carrier {FROM}) UNPIVOT INCLUDE NULLS "
        "((number, name) FOR what IN ((delay, origin), (position, carrier) AS other)) "
        "GROUP BY what",
        _pairs,
    ),
    "an array of columns": _case(
        "listed",
        "position, pos",
        f"SELECT position, pos, n {FROM} LATERAL VIEW posexplode(array(delay, 7)) t AS pos, n",
        _listed,
    ),
    "greater than all": _case(
        "above_all",
        "position",
        f"SELECT position {FROM} WHERE delay > ALL (SELECT delay {FROM} WHERE origin = 'JFK')",
        lambda w: _chosen(w, lambda f: _all(_less(g.delay, f.delay) for g in _of(w, origin="JFK"))),
    ),
    "not greater than some": _case(
        "not_above_some",
        "position",
        f"SELECT position {FROM} WHERE NOT delay > SOME (SELECT delay {FROM} WHERE origin = 'JFK')",
        lambda w: _chosen(
            w,
            lambda f: _all(
                None if (less := _less(g.delay, f.delay)) is None else not less
                for g in _of(w, origin="JFK")
            ),
        ),
    ),
    "less than any of its own": _case(
        "below_own",
        "position",
        f"SELECT a.position {FROM} a WHERE a.delay < ANY (SELECT b.delay {FROM} b "
        "WHERE b.flight = a.flight) OR a.distance = 0",
        lambda w: _chosen(
            w,
            lambda f: (
                f.distance == 0 or any(_less(f.delay, g.delay) for g in _of(w, flight=f.flight))
            ),
        ),
    ),
    "equal to all": _case(
        "equal_to_all",
        "position",
        f"SELECT a.position {FROM} a WHERE a.delay = ALL (SELECT b.delay {FROM} b "
        "WHERE b.flight = a.flight)",
        lambda w: _chosen(
            w,
            lambda f: (
                f.delay is not None and all(g.delay == f.delay for g in _of(w, flight=f.flight))
            ),
        ),
    ),
    "first rows with ties": _case(
        "ties", "position", f"{_TOP} FETCH FIRST 3 ROWS WITH TIES", _ties
    ),
    "all but the first rows": _case(
        "rest", "position", f"{_TOP} OFFSET 2", lambda w: _first(_ordered(w)[2:])
    ),
    "using of a full join": _case(
        "either",
        "carrier",
        f"SELECT carrier, a.n AS here, b.n AS there FROM (SELECT carrier, COUNT(*) AS n {FROM} "
        "WHERE origin = 'JFK' GROUP BY carrier) a FULL JOIN (SELECT carrier, COUNT(*) AS n "
        f"{FROM} WHERE origin = 'LGA' GROUP BY carrier) b USING (carrier)",
        _either,
    ),
    "natural join": _case(
        "together",
        "position",
        f"SELECT * FROM (SELECT position, carrier {FROM}) a NATURAL JOIN "
        f"(SELECT carrier, COUNT(*) AS n {FROM} WHERE origin = 'LGA' GROUP BY carrier) b",
        _together,
    ),
    "union by name": _case(
        "named",
        "flight, name",
        f"SELECT flight, origin AS name {FROM} UNION BY NAME SELECT carrier AS name, flight {FROM}",
        _named,
    ),
    "names of earlier results": _case(
        "earlier",
        "position",
        f"SELECT position, delay * 2 AS twice, twice + 1 AS more {FROM}",
        _later,
    ),
}
