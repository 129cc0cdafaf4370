"""A value that an update left alone is the one of its own column, whatever becomes of its name."""

from __future__ import annotations

import pytest

from lake.layout import Lake
from schemas.debezium import PLACEHOLDER
from tests.support.lake.followed_item import FollowedItem


@pytest.fixture
def followed(lake: Lake) -> FollowedItem:
    """A table with the columns `a` and `b`, and one row."""
    made = FollowedItem(lake)
    made.item.tell("describe")
    made.item.add("a", "text")
    made.item.add("b", "text")
    made.item.write("c", 1, {2: "a first", 3: "b first"})
    made.epoch()
    made.bring()
    return made


@pytest.mark.parametrize("apart", [True, False])
def test_a_dropped_column_that_was_left_alone_gives_its_name_and_no_value(
    followed: FollowedItem, apart: bool
) -> None:
    item = followed.item
    item.write("u", 1, {2: "a second", 3: PLACEHOLDER})
    if apart:
        followed.epoch()
        followed.bring()
    item.drop(item.columns[2])
    item.columns[1].name = "b"
    item.rows[1] = {1: 1, 2: "a second"}
    item.tell(renamed=2)
    followed.epoch()

    assert not followed.bring().held
    assert followed.current() == item.expected() == [{"id": 1, "b": "a second"}]
    assert followed.facts("b") == [("a first",), ("a second",)]


@pytest.mark.parametrize("apart", [True, False])
def test_what_was_left_alone_is_set_aside_with_its_column(
    followed: FollowedItem, apart: bool
) -> None:
    item = followed.item
    item.write("u", 1, {2: PLACEHOLDER, 3: "b second"})
    if apart:
        followed.epoch()
        followed.bring()
    item.drop(item.columns[1])
    item.add("a", "int4")
    item.write("u", 1, {3: "b third", 4: 7})
    followed.epoch()

    assert not followed.bring().held
    assert followed.current() == item.expected()
    assert followed.facts("a", "a__string", "b") == [
        (None, "a first", "b first"),
        (None, "a first", "b second"),
        (7, None, "b third"),
    ]
