"""Rows that are chosen or ranked, over the SQL tests' world, each with the same in plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from tests.support.oracles.region_projections import FROM, Case
from tests.support.oracles.sql_world import Fact, Row, World


def _case(name: str, key: str, query: str, oracle: Callable[[World], list[Row]]) -> Case:
    return Case(f"CREATE PROJECTION {name} WITH (key = '{key}') AS {query}", oracle)


def _ordered(facts: Iterable[Fact]) -> list[Fact]:
    return sorted(facts, key=lambda f: (f.time, f.position))


def _by_origin(world: World) -> dict[str, list[Fact]]:
    facts = _ordered(world.facts)
    return {
        origin: [f for f in facts if f.origin == origin] for origin in {f.origin for f in facts}
    }


def _most(facts: Sequence[Fact]) -> Fact | None:
    known = [f for f in facts if f.delay is not None]
    return max(known, key=lambda f: (f.delay or 0, f.time, f.position), default=None)


def _least(facts: Sequence[Fact]) -> Fact | None:
    known = [f for f in facts if f.delay is not None and f.delay != 1]
    return min(known, key=lambda f: (f.delay or 0, f.time, f.position), default=None)


def _each_once(world: World) -> list[Row]:
    rows: list[Row] = []
    for origin, facts in _by_origin(world).items():
        delays = {f.delay for f in facts if f.delay is not None}
        most = _most(facts)
        rows.append(
            {
                "origin": origin,
                "total": sum(delays) if delays else None,
                "mean": sum(delays) / len(delays) if delays else None,
                "n": len(delays),
                "flights": len({f.flight for f in facts}),
                "worst": None if most is None else most.flight,
            }
        )
    return rows


def _commonest(values: Iterable[int | None]) -> int | None:
    counts = Counter(value for value in values if value is not None)
    return min(counts, key=lambda value: (-counts[value], value), default=None)


def _at_part(values: list[float], hundredths: int) -> float | None:
    place = max(1, ceil(hundredths / 100 * len(values)))
    return sorted(values)[place - 1] if values else None


def _bits(values: Sequence[int], step: Callable[[int, int], int]) -> int | None:
    made: int | None = None
    for value in values:
        made = value if made is None else step(made, value)
    return made


def _chosen(world: World) -> list[Row]:
    rows: list[Row] = []
    for origin, facts in _by_origin(world).items():
        most, least = _most(facts), _least(facts)
        delays = [f.delay for f in facts if f.delay is not None]
        carriers = [f.carrier for f in facts if f.carrier is not None]
        rows.append(
            {
                "origin": origin,
                "worst": most and most.carrier,
                "best": least and least.flight,
                "widest": max(facts, key=lambda f: (f.distance, f.time, f.position)).flight,
                "first": facts[0].carrier,
                "last": facts[-1].delay,
                "known": carriers[-1] if carriers else None,
                "earliest": carriers[0] if carriers else None,
                "usual": _commonest(f.delay for f in facts),
                "half": _at_part([float(d) for d in delays], 50),
                "low": _at_part([f.distance for f in facts], 7),
                "common": _bits(delays, lambda a, b: a & b),
                "either": _bits(delays, lambda a, b: a | b),
                "odd": _bits(delays, lambda a, b: a ^ b),
            }
        )
    return rows


def _added(world: World) -> list[Row]:
    rows: list[Row] = []
    for origin, facts in _by_origin(world).items():
        delays = [f.delay for f in facts if f.delay is not None]
        rows.append(
            {
                "origin": origin,
                "common": _bits(delays, lambda a, b: a & b),
                "either": _bits(delays, lambda a, b: a | b),
                "odd": _bits(delays, lambda a, b: a ^ b),
                "last": facts[-1].delay,
                "mean": sum(delays) / len(delays) if delays else None,
            }
        )
    return rows


def _rank_key(fact: Fact) -> int:
    return -1000 if fact.delay is None else fact.delay


def _quarters(count: int, parts: int) -> list[int]:
    sizes = [count // parts + (1 if part < count % parts else 0) for part in range(parts)]
    return [part + 1 for part, size in enumerate(sizes) for _ in range(size)]


def _ranked(world: World) -> list[Row]:
    rows: list[Row] = []
    for facts in _by_origin(world).values():
        ordered = sorted(facts, key=lambda f: (_rank_key(f), f.time, f.position))
        quarters = _quarters(len(ordered), 4)
        for place, fact in enumerate(ordered):
            less = sum(1 for f in facts if _rank_key(f) < _rank_key(fact))
            same = sum(1 for f in facts if _rank_key(f) == _rank_key(fact))
            rows.append(
                {
                    "position": fact.position,
                    "quarter": quarters[place],
                    "below": less / (len(facts) - 1) if len(facts) > 1 else 0.0,
                    "share": (less + same) / len(facts),
                    "second": ordered[1].flight if less + same >= 2 else None,
                    "third": ordered[2].flight if len(ordered) > 2 else None,
                    "oldest": ordered[0].flight,
                }
            )
    return rows


_OVER = "OVER (PARTITION BY origin ORDER BY delay NULLS FIRST"
CHOSEN = {
    "totals of values that count once": _case(
        "each_once",
        "origin",
        "SELECT origin, SUM(DISTINCT delay) AS total, AVG(DISTINCT delay) AS mean, "
        "COUNT(DISTINCT delay) AS n, COUNT(DISTINCT flight) AS flights, "
        f"MAX_BY(flight, delay) AS worst FROM (SELECT origin, flight, delay {FROM}) x "
        "GROUP BY origin",
        _each_once,
    ),
    "chosen rows": _case(
        "chosen",
        "origin",
        "SELECT origin, MAX_BY(carrier, delay) AS worst, "
        "MIN_BY(flight, delay) FILTER (WHERE delay <> 1) AS best, "
        "MAX_BY(flight, distance) AS widest, FIRST(carrier) AS first, LAST(delay) AS last, "
        "LAST(carrier, true) AS known, FIRST_VALUE(carrier) IGNORE NULLS AS earliest, "
        "MODE(delay) AS usual, "
        "CAST(PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY delay) AS DOUBLE) AS half, "
        "PERCENTILE_APPROX(distance, 0.07) AS low, "
        f"BIT_AND(delay) AS common, BIT_OR(delay) AS either, BIT_XOR(delay) AS odd {FROM} "
        "GROUP BY origin",
        _chosen,
    ),
    "bits that are added to": _case(
        "bits",
        "origin",
        "SELECT origin, BIT_AND(delay) AS common, BIT_OR(delay) AS either, BIT_XOR(delay) AS odd, "
        f"LAST(delay) AS last, MEAN(delay) AS mean {FROM} GROUP BY origin",
        _added,
    ),
}
RANKED = {
    "shares of ranks": _case(
        "ranked",
        "position",
        f"SELECT position, NTILE(4) {_OVER}) AS quarter, PERCENT_RANK() {_OVER}) AS below, "
        f"CUME_DIST() {_OVER}) AS share, NTH_VALUE(flight, 2) {_OVER}) AS second, "
        f"NTH_VALUE(flight, 3) {_OVER} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) "
        f"AS third, FIRST(flight) {_OVER}) AS oldest {FROM}",
        _ranked,
    ),
}
