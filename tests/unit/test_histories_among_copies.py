"""A copy's rows come behind what was committed after they were read; columns change their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lake.layout import Lake
from pipeline.history.shape import HistoryOf
from tests.support.lake.followed_item import HISTORY, FollowedItem
from tests.support.lake.handmade import NoSpark
from tests.support.lake.kept_history import KeptHistory
from tests.support.oracles.change_facts import BEFORE_ALL, Fact, truncates, typed
from tests.support.sources.ddl_rows import START

PEOPLE = HistoryOf(
    name="history/x",
    typed="typed/x",
    key=("id",),
    identity=("id",),
    by_row=False,
    truncates="typed/_truncates",
    table="public.people",
)
BY_NAME = replace(PEOPLE, key=("name",), by_row=True, truncates=None)


def fact(operation: str, hi: int, id_: int | None, name: str | None = None) -> Fact:
    """Make a fact, the only one of its transaction, or what a copy read before that."""
    copied = operation == "r"
    return Fact(
        operation=operation,
        id=id_,
        name=name,
        transaction=None if copied else hi,
        second=hi,
        hi=hi,
        lo=BEFORE_ALL if copied else 1,
        lsn=hi,
    )


def folded(lake: Lake, history: HistoryOf, *epochs: Sequence[Fact]) -> list[tuple[Any, ...]]:
    """Fold facts epoch by epoch; return id, name, and what ends each version."""
    kept = KeptHistory(cast(SparkSession, NoSpark()), lake, history)
    for number, facts in enumerate(epochs, start=1):
        cleared: pa.Table | None = None if history.truncates is None else truncates(facts, number)
        kept.fold(typed(facts, number), cleared)
    names = ("id", "name", "valid_to", "_deleted")
    return [tuple(row[name] for name in names) for row in kept.rows()]


READ = fact("r", 10, 1, "read")


@pytest.mark.parametrize(
    "after",
    [
        [fact("t", 30, None), fact("c", 40, 9, "other")],
        [fact("d", 30, 1), fact("c", 40, 9, "other")],
        [fact("u", 30, 1, "changed")],
    ],
    ids=["truncated", "deleted", "changed"],
)
@pytest.mark.parametrize("history", [PEOPLE, BY_NAME], ids=["commits", "rows"])
def test_p6_copied_rows_that_come_late_are_a_version_before_what_was_committed_since(
    lake: Lake, after: list[Fact], history: HistoryOf
) -> None:
    if history.truncates is None:
        after = [each for each in after if each.operation != "t"]
    together = folded(Lake(f"{lake.root}-together"), history, [READ, *after])
    assert folded(lake, history, after, [READ]) == together


@pytest.mark.parametrize("apart", [True, False])
def test_p6_versions_follow_a_column_whose_name_another_one_takes(lake: Lake, apart: bool) -> None:
    followed = FollowedItem(lake, histories=[HISTORY])
    item = followed.item
    item.tell("describe")
    column = item.add("a", "text")
    item.write("c", 1, {2: "old"})
    followed.epoch()
    followed.bring()
    column.name = "b"
    item.tell(renamed=column.attnum)
    if apart:
        followed.epoch()
        followed.bring()
    item.add("a", "text")
    item.write("u", 1, {2: "told", 3: "fresh"})
    later = START + timedelta(minutes=1)
    item.log[-1] |= {"committed_at": later, "event_time": later, "recorded_at": later}
    followed.epoch()
    assert not followed.bring().held

    versions = followed.tables.read(lake.path(HISTORY.name))
    assert versions is not None
    found = versions.sort_by("_seq_hi").select(["b", "a"]).to_pylist()
    assert found == [{"b": "old", "a": None}, {"b": "told", "a": "fresh"}]
