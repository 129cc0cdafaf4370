"""Patterns over the SQL tests' world, each with a search by brute force in plain Python.

The search knows nothing of steps or of what was tried before: it yields all ways in which a pattern
can lie over rows, those that are preferred first, and takes the first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from tests.support.oracles.region_projections import Case
from tests.support.oracles.sql_world import Fact, Row, World

Mapped = tuple[tuple[str, Fact], ...]
Holds = Callable[[str, Fact, Mapped, Fact | None], bool]
"""Whether a fact may be a variable, after what is mapped and the fact before it."""
Shape = tuple[Any, ...]
"""`one` variable, parts `then` another, one `or` another, a part so `many` times."""


def ways(
    shape: Shape, facts: Sequence[Fact], at: int, mapped: Mapped, holds: Holds
) -> Iterator[tuple[int, Mapped]]:
    """Yield where each way to lie over facts ends, and what it maps."""
    kind = shape[0]
    if kind == "one":
        before = facts[at - 1] if at else None
        if at < len(facts) and holds(str(shape[1]), facts[at], mapped, before):
            yield at + 1, (*mapped, (str(shape[1]), facts[at]))
    elif kind == "then":
        yield from _following(shape[1:], facts, at, mapped, holds)
    elif kind == "or":
        for part in shape[1:]:
            yield from ways(part, facts, at, mapped, holds)
    else:
        yield from _several(shape, facts, at, mapped, holds)


def _following(
    parts: Sequence[Shape], facts: Sequence[Fact], at: int, mapped: Mapped, holds: Holds
) -> Iterator[tuple[int, Mapped]]:
    if not parts:
        yield at, mapped
        return
    for end, more in ways(parts[0], facts, at, mapped, holds):
        yield from _following(parts[1:], facts, end, more, holds)


def _several(
    shape: Shape, facts: Sequence[Fact], at: int, mapped: Mapped, holds: Holds
) -> Iterator[tuple[int, Mapped]]:
    _, part, least, most, greedy = shape

    def again() -> Iterator[tuple[int, Mapped]]:
        if most != 0:
            for end, more in ways(part, facts, at, mapped, holds):
                fewer = None if most is None else most - 1
                rest = ("many", part, max(least - 1, 0), fewer, greedy)
                yield from _several(rest, facts, end, more, holds)

    if greedy:
        yield from again()
    if least == 0:
        yield at, mapped
    if not greedy:
        yield from again()


def found(
    world: World,
    shape: Shape,
    holds: Holds,
    within: int | None,
    *,
    overlapping: bool = False,
    together: bool = False,
    to_last: str | None = None,
) -> list[Mapped]:
    """Return all matches of a pattern in the facts of each flight, or of all together.

    The search goes on behind a match, at its second row if `overlapping`, or at the last row of the
    variable `to_last`.
    """
    flights: dict[str, list[Fact]] = defaultdict(list)
    for fact in sorted(world.facts, key=lambda fact: (fact.time, fact.position)):
        flights["" if together else fact.flight].append(fact)
    matches = []
    for facts in flights.values():
        start = 0
        while start < len(facts):
            last = facts[start].time + timedelta(minutes=within if within is not None else 10**6)
            near = [fact for fact in facts if fact.time <= last]
            end, mapped = next(ways(shape, near, start, (), holds), (start, ()))
            if mapped:
                matches.append(mapped)
            if to_last is not None and mapped:
                start += max(at for at, (name, _) in enumerate(mapped) if name == to_last)
            else:
                start = end if mapped and not overlapping else start + 1
    return matches


def _of(mapped: Mapped, variable: str) -> list[Fact]:
    return [fact for name, fact in mapped if name == variable]


def _total(values: list[float]) -> float:
    total, *more = sorted(values)
    for value in more:
        total += value
    return total


def _growing(variable: str, fact: Fact, mapped: Mapped, before: Fact | None) -> bool:
    if variable == "A":
        return fact.delay is None or fact.delay == 0
    if variable == "B":
        return fact.distance >= _of(mapped, "A")[0].distance
    return fact.delay is not None and fact.delay > len(_of(mapped, "B"))


def _grown(world: World) -> list[Row]:
    shape = (
        "then",
        ("one", "A"),
        ("many", ("one", "B"), 1, None, True),
        ("many", ("one", "C"), 0, 1, True),
    )
    rows: list[Row] = []
    for mapped in found(world, shape, _growing, 15):
        (a,), b, c = _of(mapped, "A"), _of(mapped, "B"), _of(mapped, "C")
        delays = [fact.delay for fact in b if fact.delay is not None]
        rows.append(
            {
                "p": a.position,
                "until": mapped[-1][1].time,
                "n": len(b),
                "far": _total([fact.distance for fact in b]),
                "delays": sum(delays) if delays else None,
                "mean": sum(delays) / len(delays) if delays else None,
                "least": min(delays, default=None),
                "c": c[0].position if c else None,
                "all_rows": len(mapped),
                "apart": b[-1].position - a.position,
            }
        )
    return rows


def _rising(variable: str, fact: Fact, mapped: Mapped, before: Fact | None) -> bool:
    if variable == "A":
        return before is not None and fact.distance > before.distance
    return variable == "C" or fact.delay is None


def _risen(world: World) -> list[Row]:
    shape = ("then", ("many", ("or", ("one", "A"), ("one", "B")), 2, 2, True), ("one", "C"))
    return [
        {"p": mapped[0][1].position, "c": mapped[-1][1].position, "rises": len(_of(mapped, "A"))}
        for mapped in found(world, shape, _rising, None, overlapping=True)
    ]


def _there_and_back(variable: str, fact: Fact, mapped: Mapped, before: Fact | None) -> bool:
    if variable == "A":
        return fact.origin == "JFK"
    if variable == "B":
        there = _of(mapped, "A")[0].carrier
        return fact.origin == "LGA" and fact.carrier is not None and fact.carrier == there
    return True


def _returned(world: World) -> list[Row]:
    shape = ("then", ("one", "A"), ("many", ("one", "X"), 0, None, False), ("one", "B"))
    return [
        {"p": mapped[0][1].position, "q": mapped[-1][1].position, "others": len(mapped) - 2}
        for mapped in found(world, shape, _there_and_back, 20)
    ]


def _early_then_late(variable: str, fact: Fact, mapped: Mapped, before: Fact | None) -> bool:
    return (fact.delay or 0) == 0 if variable == "A" else fact.flight == mapped[0][1].flight


def _again(world: World) -> list[Row]:
    shape = ("then", ("one", "A"), ("one", "B"))
    return [
        {"p": mapped[0][1].position, "flight": mapped[1][1].flight}
        for mapped in found(world, shape, _early_then_late, 10, together=True)
    ]


def _farther(variable: str, fact: Fact, mapped: Mapped, before: Fact | None) -> bool:
    """Compare as SQL does: a double times a decimal is a double, INT times a decimal is exact."""
    if variable == "A":
        return True
    first = _of(mapped, "A")[0]
    if fact.distance >= first.distance * 1.1:
        return True
    both = fact.delay is not None and first.delay is not None
    return both and fact.delay == Decimal(first.delay) * Decimal("0.1")


def _farthest(world: World) -> list[Row]:
    shape = ("then", ("one", "A"), ("one", "B"))
    return [
        {"p": mapped[0][1].position, "q": mapped[1][1].position}
        for mapped in found(world, shape, _farther, 15, overlapping=True)
    ]


def _down_and_up(variable: str, fact: Fact, mapped: Mapped, before: Fact | None) -> bool:
    down = _of(mapped, "D")
    if variable == "S":
        return True
    if variable == "U":
        return fact.distance > down[-1].distance
    return fact.distance < (down or _of(mapped, "S"))[-1].distance


def _dips(world: World) -> list[Row]:
    shape = ("then", ("one", "S"), ("many", ("one", "D"), 1, None, True), ("one", "U"))
    rows: list[Row] = []
    for mapped in found(world, shape, _down_and_up, 30, to_last="U"):
        down = _of(mapped, "D")
        rows.append(
            {
                "p": mapped[0][1].position,
                "low": down[-1].position,
                "second": down[1].position if len(down) > 1 else None,
                "before": down[-2].position if len(down) > 1 else None,
                "until": mapped[-1][1].time,
            }
        )
    return rows


def _of_each(variable: str, fact: Fact, mapped: Mapped, before: Fact | None) -> bool:
    if variable == "A":
        return fact.origin == "JFK"
    return fact.delay is None if variable == "B" else fact.distance >= 1


def _permuted(world: World) -> list[Row]:
    one = {name: ("one", name) for name in "ABC"}
    orders = ("ABC", "ACB", "BAC", "BCA", "CAB", "CBA")
    shape = ("or", *(("then", *(one[name] for name in order)) for order in orders))
    return [
        {"p": mapped[0][1].position, "a": _of(mapped, "A")[0].position, "last": mapped[-1][0]}
        for mapped in found(world, shape, _of_each, 40, overlapping=True, together=True)
    ]


def _each_row(world: World) -> list[Row]:
    shape = ("then", ("one", "A"), ("many", ("or", ("one", "B"), ("one", "C")), 1, 3, True))
    rows: list[Row] = []
    for mapped in found(world, shape, _of_each, 25):
        for place, (name, fact) in enumerate(mapped):
            so_far = mapped[: place + 1]
            rows.append(
                {
                    "position": fact.position,
                    "was": name,
                    "far": _total([each.distance for _, each in so_far]),
                    "began": mapped[0][1].position,
                    "b": len(_of(so_far, "B")),
                    "all_b": len(_of(mapped, "B")),
                    "delay": fact.delay,
                }
            )
    return rows


def _pattern(
    name: str,
    columns: str,
    clause: str,
    oracle: Callable[[World], list[Row]],
    partition: str = "PARTITION BY flight",
    key: str = "p",
) -> Case:
    return Case(
        f"CREATE PROJECTION {name} WITH (key = '{key}') AS SELECT {columns} "
        "FROM STREAM events.flight.departed MATCH_RECOGNIZE ("
        f"{partition} ORDER BY occurred_at {clause}) m",
        oracle,
    )


PATTERNS = {
    "pattern": _pattern(
        "grown",
        "p, until, n, far, delays, mean, least, c, all_rows, apart",
        "MEASURES A.position AS p, LAST(occurred_at) AS until, COUNT(B.*) AS n, "
        "SUM(B.distance) AS far, SUM(B.delay) AS delays, AVG(B.delay) AS mean, "
        "MIN(B.delay) AS least, FIRST(C.position) AS c, COUNT(*) AS all_rows, "
        "B.position - A.position AS apart "
        "PATTERN (A B+ C?) WITHIN INTERVAL 15 MINUTES "
        "DEFINE A AS coalesce(A.delay, 0) = 0, B AS B.distance >= A.distance, "
        "C AS C.delay > COUNT(B.*)",
        _grown,
    ),
    "pattern, overlapping": _pattern(
        "risen",
        "p, c, rises",
        "MEASURES FIRST(position) AS p, C.position AS c, COUNT(A.position) AS rises "
        "ONE ROW PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN ((A | B){2} C) "
        "DEFINE A AS A.distance > PREV(A.distance), B AS delay IS NULL",
        _risen,
    ),
    "pattern, reluctant": _pattern(
        "returned",
        "p, q, others",
        "MEASURES A.position AS p, B.position AS q, COUNT(X.*) AS others "
        "ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW "
        "PATTERN (A X*? B) WITHIN INTERVAL '20' MINUTE "
        "DEFINE A AS origin = 'JFK', B AS B.origin = 'LGA' AND B.carrier = A.carrier",
        _returned,
    ),
    "pattern, decimals": _pattern(
        "farthest",
        "p, q",
        "MEASURES A.position AS p, B.position AS q AFTER MATCH SKIP TO NEXT ROW "
        "PATTERN (A B) WITHIN INTERVAL 15 MINUTES "
        "DEFINE B AS B.distance >= A.distance * 1.1 OR B.delay = A.delay * 0.1",
        _farthest,
    ),
    "pattern, all rows together": _pattern(
        "again",
        "p, flight",
        "MEASURES A.position AS p, B.flight AS flight PATTERN (A B) WITHIN INTERVAL 10 MINUTES "
        "DEFINE A AS coalesce(delay, 0) = 0, B AS B.flight = A.flight",
        _again,
        partition="",
    ),
    "pattern, down and up": _pattern(
        "dips",
        "m.p, m.low, second, before, until",
        "MEASURES S.position AS p, LAST(D.position) AS low, FIRST(D.position, 1) AS second, "
        "LAST(D.position, 1) AS before, MATCH_ROWTIME() AS until "
        "ONE ROW PER MATCH AFTER MATCH SKIP TO LAST U "
        "PATTERN (S D+ U) WITHIN INTERVAL '30' MINUTE "
        "DEFINE D AS (LAST(D.distance, 1) IS NULL AND D.distance < S.distance) "
        "OR D.distance < LAST(D.distance, 1), U AS U.distance > LAST(D.distance)",
        _dips,
    ),
    "pattern, permuted": _pattern(
        "permuted",
        "*",
        "MEASURES FIRST(position) AS p, A.position AS a, FINAL CLASSIFIER() AS last "
        "AFTER MATCH SKIP TO NEXT ROW PATTERN (PERMUTE(A, B, C)) WITHIN INTERVAL 40 MINUTES "
        "DEFINE A AS origin = 'JFK', B AS delay IS NULL, C AS distance >= 1",
        _permuted,
        partition="",
    ),
    "pattern, each row": _pattern(
        "rows_of_matches",
        "position, was, far, began, b, all_b, delay",
        "MEASURES CLASSIFIER() AS was, SUM(distance) AS far, FIRST(A.position) AS began, "
        "RUNNING COUNT(B.*) AS b, FINAL COUNT(B.*) AS all_b "
        "ALL ROWS PER MATCH PATTERN (A (B | C){1,3}) WITHIN INTERVAL 25 MINUTES "
        "DEFINE A AS origin = 'JFK', B AS delay IS NULL, C AS distance >= 1",
        _each_row,
        key="position",
    ),
}
