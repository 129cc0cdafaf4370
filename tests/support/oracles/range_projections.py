"""OVER with RANGE on both sides of a row, over the SQL tests' world, each in plain Python too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import fsum

from tests.support.oracles.region_projections import FROM, Case
from tests.support.oracles.sql_world import Fact, Row, World

Near = Callable[[Fact, Fact], bool]
"""Whether the second one is in the frame of the first, which is of the same flight."""
_RESULTS = "SELECT position, COUNT(*) OVER w AS n, SUM(distance) OVER w AS far, MAX(delay) OVER w"


def _case(name: str, order: str, frame: str, near: Near) -> Case:
    over = f"(PARTITION BY flight ORDER BY {order} RANGE BETWEEN {frame})"
    query = f"{_RESULTS} AS late {FROM} WINDOW w AS {over}"

    def oracle(world: World) -> list[Row]:
        rows: list[Row] = []
        for fact in world.facts:
            found = [f for f in world.facts if f.flight == fact.flight and near(fact, f)]
            far = fsum(f.distance for f in found) if found else None
            late = max((f.delay for f in found if f.delay is not None), default=None)
            rows.append({"position": fact.position, "n": len(found), "far": far, "late": late})
        return rows

    return Case(f"CREATE PROJECTION {name} WITH (key = 'position') AS {query}", oracle)


def _minutes(least: int, most: int) -> Near:
    span = timedelta(minutes=least), timedelta(minutes=most)
    return lambda own, other: span[0] <= other.time - own.time <= span[1]


def _delays(least: int | None, most: int | None) -> Near:
    """Rows without a delay are among themselves, and in front of all others."""

    def near(own: Fact, other: Fact) -> bool:
        if own.delay is None or other.delay is None:
            return own.delay is other.delay or (
                (other.delay is None and least is None) or (own.delay is None and most is None)
            )
        away = other.delay - own.delay
        return (least is None or away >= least) and (most is None or away <= most)

    return near


RANGES = {
    "range on both sides": _case(
        "range_around",
        "occurred_at",
        "INTERVAL 10 MINUTES PRECEDING AND INTERVAL 5 MINUTES FOLLOWING",
        _minutes(-10, 5),
    ),
    "range behind": _case(
        "range_behind",
        "occurred_at",
        "INTERVAL 1 MINUTE FOLLOWING AND INTERVAL 20 MINUTES FOLLOWING",
        _minutes(1, 20),
    ),
    "range before": _case(
        "range_before",
        "occurred_at",
        "INTERVAL 20 MINUTES PRECEDING AND INTERVAL 1 MINUTE PRECEDING",
        _minutes(-20, -1),
    ),
    "range, descending": _case(
        "range_descending",
        "occurred_at DESC",
        "INTERVAL 10 MINUTES PRECEDING AND INTERVAL 1 MINUTE PRECEDING",
        _minutes(1, 10),
    ),
    "range of numbers": _case(
        "range_numbers", "delay", "1 PRECEDING AND 2 FOLLOWING", _delays(-1, 2)
    ),
    "range of long numbers": _case(
        "range_long",
        "position DESC",
        "2 PRECEDING AND CURRENT ROW",
        lambda own, other: 0 <= other.position - own.position <= 2,
    ),
    "range to the end": _case(
        "range_to_end", "delay", "2 FOLLOWING AND UNBOUNDED FOLLOWING", _delays(2, None)
    ),
    "range from the beginning": _case(
        "range_from_begin", "delay", "UNBOUNDED PRECEDING AND 1 PRECEDING", _delays(None, -1)
    ),
    "range from the row": _case(
        "range_from_row", "delay", "CURRENT ROW AND UNBOUNDED FOLLOWING", _delays(0, None)
    ),
    "range of all": _case(
        "range_all", "delay", "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING", lambda *_: True
    ),
}
