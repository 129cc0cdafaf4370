"""Keys that a transaction links lie together, and no others do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.current import key_groups
from pipeline.current.key_groups import groups_of

KEY = st.integers(0, 12)


def hashes(numbers: list[int]) -> key_groups.Hashes:
    return np.array(numbers, np.uint64)


@given(st.lists(st.tuples(KEY, KEY), max_size=20))
def test_keys_have_one_hash_just_when_links_lead_from_one_to_the_other(
    links: list[tuple[int, int]],
) -> None:
    together = {key: {key} for key in range(16)}
    for old, new in links:
        merged = together[old] | together[new]
        for key in merged:
            together[key] = merged
    found = groups_of(hashes([old for old, _ in links]), hashes([new for _, new in links]))
    assert found is not None
    laid = found.grouped(hashes(list(range(16)))).tolist()
    for one in range(16):
        assert {other for other in range(16) if laid[other] == laid[one]} == together[one]


def test_a_row_of_keys_that_are_all_linked_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `UPDATE … SET id = id + 1`: all of them would lie in one file."""
    numbers = np.random.default_rng(1).permutation(5_000).astype(np.uint64)
    assert groups_of(numbers[:-1], numbers[1:]) is None
    monkeypatch.setattr(key_groups, "MOST_TOGETHER", 5_000)
    found = groups_of(numbers[:-1], numbers[1:])
    assert found is not None
    assert set(found.grouped(numbers).tolist()) == {0}
