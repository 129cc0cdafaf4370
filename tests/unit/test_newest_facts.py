"""The comparison of facts with current rows finds each kind of difference."""

from __future__ import annotations

from decimal import Decimal

import pytest

from tests.support.oracles.newest_facts import Row, compared, newest_facts


def fact(key: int, place: int, value: object, operation: str = "u") -> Row:
    return {
        "id": key,
        "n": value,
        "_operation": operation,
        "_seq_hi": place,
        "_seq_lo": 0,
    }


FACTS = [
    fact(1, 10, 1, "c"),
    fact(1, 30, Decimal("2.50")),
    fact(2, 20, 5, "c"),
    fact(2, 25, None, "d"),
    fact(3, 26, float("nan"), "c"),
]
CURRENT: list[Row] = [{"id": 1, "n": Decimal("2.5")}, {"id": 3, "n": float("nan")}]


@pytest.mark.parametrize(
    ("current", "since", "differences"),
    [
        (CURRENT, 0, 0),
        (CURRENT[1:], 0, 1),
        ([*CURRENT, {"id": 2, "n": 5}], 0, 1),
        ([{"id": 1, "n": None}, CURRENT[1]], 0, 1),
        ([{"id": 1, "n": None}, CURRENT[1]], 30, 0),
    ],
)
def test_each_difference_is_found(current: list[Row], since: int, differences: int) -> None:
    newest = newest_facts(FACTS, ["id"])
    assert len(compared("t", newest, current, ["id"], ["n"], since)) == differences


def test_what_came_before_a_truncate_is_gone() -> None:
    assert newest_facts(FACTS, ["id"], after=(26, 1)).keys() == {(1,)}
