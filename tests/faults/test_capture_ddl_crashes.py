"""A crash while a table is written anew for DDL: the next start ends in the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kernel import failpoints
from kernel.errors import Incompatible
from lake.layout import Lake
from tests.support.sources.ddl_rows import Folding, Item


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.mark.parametrize(
    "failpoint", [failpoints.EVOLVE_WHILE_WRITING, failpoints.EVOLVE_AFTER_COMMIT]
)
def test_p4_a_crash_while_columns_change_ends_in_the_same_rows(failpoint: str, lake: Lake) -> None:
    item = Item()
    item.tell("describe")
    first = item.add("a", "int4", "1")
    for key in (1, 2, 3):
        item.write("c", key, {first.attnum: key})
    before = len(item.log)
    item.write("u", 1, {first.attnum: 10})
    first.name, first.type = "b", "int8"
    item.tell()
    again = item.add("a", "text", "new")
    item.write("u", 2, {first.attnum: 20, again.attnum: None})
    folding = Folding(lake, item)
    folding.run(item.log[:before])
    folding.append(item.log[before:])

    failpoints.arm(failpoint)
    # What is raised while rows are handed over comes back as the writer's own error.
    with pytest.raises((failpoints.Crash, Incompatible)):
        folding.fold(item.log[before:])
    folding.restart()
    folding.fold(item.log[before:])

    assert folding.rows() == [
        {"id": 1, "b": 10, "a": "new"},
        {"id": 2, "b": 20, "a": None},
        {"id": 3, "b": 3, "a": "new"},
    ]
    folding.restart()
    folding.fold(item.log[before:])
    assert folding.rows(["id", "b", "a"]) == item.expected()
