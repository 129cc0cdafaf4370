"""Joins and subqueries that equate nothing, over the SQL tests' world, each in plain Python too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta

from tests.support.oracles.region_projections import FROM, Case
from tests.support.oracles.sql_world import Fact, Row, World

STREAM = FROM.removeprefix("FROM ")


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _pairs(world: World) -> Iterable[tuple[Fact, Fact]]:
    return ((one, other) for one in world.facts for other in world.facts)


def _more(world: World) -> list[Row]:
    return [
        {"one": one.position, "other": other.position}
        for one, other in _pairs(world)
        if (one.delay or 0) < (other.delay or 0)
        and None not in (one.delay, other.delay)
        and one.time < other.time <= one.time + timedelta(minutes=10)
    ]


def _left(world: World) -> list[Row]:
    rows: list[Row] = []
    for one in world.facts:
        met = [
            other.position
            for other in world.facts
            if one.delay is not None and other.delay is not None and one.delay + 1 < other.delay
        ]
        rows += [{"one": one.position, "other": place} for place in met or [-1]]
    return rows


def _all(world: World) -> list[Row]:
    return [
        {"one": one.position, "other": other.position}
        for one, other in _pairs(world)
        if one.origin == "JFK"
    ]


def _never_later(world: World) -> list[Row]:
    late = [f for f in world.facts if f.delay is not None and f.delay >= 3]
    return [
        {"position": f.position}
        for f in world.facts
        if not any(each.distance > f.distance for each in late)
    ]


def _differs(one: object, other: object) -> bool:
    return one is not None and other is not None and one != other


def _not_among(world: World) -> list[Row]:
    late = [(f.carrier, f.delay) for f in world.facts if f.distance == 1]
    return [
        {"position": f.position}
        for f in world.facts
        if all(_differs(f.carrier, carrier) or _differs(f.delay, delay) for carrier, delay in late)
    ]


def _none_or(world: World) -> list[Row]:
    among = [f.carrier for f in world.facts if f.delay == 3]
    return [
        {"position": f.position}
        for f in world.facts
        if f.origin == "JFK" or all(_differs(f.carrier, each) for each in among)
    ]


def _chained(world: World) -> list[Row]:
    far = {f.carrier for f in world.facts if f.distance > 1 and f.carrier is not None}
    flights = {f.flight for f in world.facts if f.carrier in far}
    return [{"position": f.position} for f in world.facts if f.flight in flights]


UNEQUAL = {
    "less, within a time": _case(
        "more",
        "one, other",
        f"SELECT a.position AS one, b.position AS other {FROM} a JOIN {STREAM} b "
        "ON a.delay < b.delay AND b.occurred_at > a.occurred_at "
        "AND b.occurred_at <= a.occurred_at + INTERVAL 10 MINUTES",
        _more,
    ),
    "less, or none": _case(
        "or_none",
        "one, other",
        f"SELECT a.position AS one, coalesce(b.position, -1) AS other {FROM} a "
        f"LEFT JOIN {STREAM} b ON a.delay + 1 < b.delay",
        _left,
    ),
    "each with each": _case(
        "each",
        "one, other",
        f"SELECT a.position AS one, b.position AS other {FROM} a CROSS JOIN {STREAM} b "
        "WHERE a.origin = 'JFK'",
        _all,
    ),
    "not exists, unequal": _case(
        "no_later",
        "position",
        f"SELECT position {FROM} a WHERE NOT EXISTS (SELECT 1 {FROM} b "
        "WHERE b.distance > a.distance AND b.delay >= 3)",
        _never_later,
    ),
    "two columns not in": _case(
        "not_among",
        "position",
        f"SELECT position {FROM} WHERE (carrier, delay) NOT IN "
        f"(SELECT carrier, delay {FROM} WHERE distance = 1)",
        _not_among,
    ),
    "not in, or": _case(
        "none_or",
        "position",
        f"SELECT position {FROM} WHERE origin = 'JFK' OR carrier NOT IN "
        f"(SELECT carrier {FROM} WHERE delay = 3)",
        _none_or,
    ),
    "exists in exists": _case(
        "chained",
        "position",
        f"SELECT a.position {FROM} a WHERE EXISTS (SELECT 1 {FROM} b WHERE b.flight = a.flight "
        f"AND EXISTS (SELECT 1 {FROM} c WHERE c.carrier = b.carrier AND c.distance > 1))",
        _chained,
    ),
}
