"""Many ranges that differ are healed by few installs, none of them larger than can be replaced."""

from __future__ import annotations

import pytest

from cdc.verification.healing import together
from kernel.errors import InvalidRequest
from schemas.key_ranges import WHOLE, KeyRange


class Installs:
    """Takes ranges of at most `most` keys, as ingest does."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.tried = 0
        self.taken: list[tuple[int, int]] = []

    def __call__(self, area: KeyRange) -> str:
        self.tried += 1
        low, high = number(area.low), number(area.high)
        if high - low > self.most:
            raise InvalidRequest("too many rows")
        self.taken.append((low, high))
        return f"i{len(self.taken)}"


def number(bound: tuple[str, ...] | None) -> int:
    assert bound is not None
    return int(bound[0])


def ranges(*keys: int) -> list[KeyRange]:
    return [KeyRange(low=(str(key),), high=(str(key + 10),)) for key in keys]


def test_neighbours_are_replaced_at_once() -> None:
    install = Installs(most=1_000)
    assert together(ranges(*range(0, 1_000, 20)), install) == [
        (KeyRange(low=("0",), high=("990",)), "i1")
    ]


def test_what_is_too_large_together_is_replaced_in_parts() -> None:
    install = Installs(most=300)
    areas = ranges(*range(0, 1_000, 20), 50_000, 90_000)
    done = together(areas, install)
    assert [(number(area.low), number(area.high)) for area, _ in done] == install.taken
    assert all(
        any(low <= number(area.low) and number(area.high) <= high for low, high in install.taken)
        for area in areas
    )
    assert len(install.taken) < len(areas) / 3
    assert install.taken == sorted(install.taken)


def test_a_range_that_is_too_large_by_itself_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        together([*ranges(1, 20), KeyRange(low=("100",), high=("5000",))], Installs(most=300))


def test_a_key_without_ranges_is_replaced_as_a_whole() -> None:
    assert together([WHOLE], lambda area: "i1") == [(WHOLE, "i1")]
