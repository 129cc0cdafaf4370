"""A typed table that stood still goes on from the columns that it had, in another process too."""

from __future__ import annotations

from pathlib import Path

import pytest

from lake.layout import Lake
from tests.support.lake.followed_item import FollowedItem
from tests.support.sources.ddl_copies import TYPED


@pytest.mark.parametrize("restarts", [True, False])
@pytest.mark.parametrize("rows", [True, False])
def test_ddl_that_came_while_it_stood_still_is_followed(
    lake: Lake, restarts: bool, rows: bool
) -> None:
    followed = FollowedItem(lake)
    item, path = followed.item, Path(lake.path(TYPED))
    item.tell("describe")
    column = item.add("a", "text")
    item.write("c", 1, {2: "first"})
    followed.epoch()
    followed.bring()
    column.name = "b"
    item.tell(renamed=column.attnum)
    if rows:
        item.write("u", 1, {2: "second"})
    followed.epoch()
    path.rename(path.with_name("aside"))
    path.write_bytes(b"a file where a folder should be")
    followed.tables.forget_all()
    assert TYPED in followed.bring().held
    path.unlink()
    path.with_name("aside").rename(path)
    followed.tables.forget_all()
    if restarts:
        followed.restart()
    item.write("u", 1, {2: "last"})
    followed.epoch()
    followed.derived.try_now()

    assert not followed.bring().held
    wanted = [("first",), ("second",), ("last",)] if rows else [("first",), ("last",)]
    assert followed.facts("b") == wanted
