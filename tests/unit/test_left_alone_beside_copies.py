"""What an update left alone is what its row was then: before a copy was read, or as it was read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from lake.layout import Lake
from schemas.debezium import PLACEHOLDER
from tests.support.lake.followed_item import FollowedItem
from tests.support.sources.ddl_copies import copied
from tests.support.sources.ddl_rows import Item


@pytest.fixture
def followed(lake: Lake) -> FollowedItem:
    """A table with a large value and a number, and one row."""
    made = FollowedItem(lake)
    made.item.tell("describe")
    made.item.add("large", "text")
    made.item.add("n", "int4")
    made.item.write("c", 1, {2: "first", 3: 0})
    made.epoch()
    made.bring()
    return made


def leave_alone(item: Item, n: int) -> None:
    """Update the row's number alone."""
    large = item.rows[1][2]
    item.write("u", 1, {2: PLACEHOLDER, 3: n})
    item.rows[1][2] = large


def steps(followed: FollowedItem, apart: Sequence[str]) -> None:
    """End an epoch, and bring it, where a test wants them apart."""
    if "apart" in apart:
        followed.epoch()
        followed.bring()


@pytest.mark.parametrize("apart", ["apart", ""])
@pytest.mark.parametrize("held", [True, False])
def test_p6_rows_around_a_copy_know_what_was_before_them(
    followed: FollowedItem, apart: str, held: bool
) -> None:
    item = followed.item
    if held:
        item.tell(persistence="u")
        followed.epoch()
        followed.bring()
        assert followed.ingest.held()["shop"]
    leave_alone(item, 1)
    steps(followed, apart)
    # A row of which nobody saw a change, as where a slot was lost.
    item.rows[1][2] = "unseen"
    install = copied(followed)
    leave_alone(item, 2)
    item.write("u", 1, {2: "last", 3: 3})
    leave_alone(item, 4)
    followed.announce(install)
    followed.epoch()

    assert not followed.bring().held
    assert followed.current() == item.expected()
    assert followed.facts("n", "large") == [
        (0, "first"),
        (1, "first"),
        (1, "unseen"),
        (2, "unseen"),
        (3, "last"),
        (4, "last"),
    ]
