"""Facts follow DDL wherever rounds begin and end, and whatever a copy brings between them."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest

from lake.layout import Lake, changes_log
from lake.tables import Tables
from pipeline.log.large_folds import split
from tests.support.sources.ddl_copies import Rounds, copied, end_of
from tests.support.sources.ddl_rows import SOURCE, Item


@pytest.fixture
def item() -> Item:
    """A table with a column `a` and one row."""
    made = Item()
    made.tell("describe")
    made.add("a", "text")
    made.write("c", 1, {2: "first"})
    return made


def test_p8_a_table_whose_schema_begins_with_an_underscore_has_facts(lake: Lake) -> None:
    item = Item(table="_own.item")
    item.tell("describe")
    for number in range(1, 4):
        item.write("c", number)
    rounds = Rounds(lake, item)
    rounds.log()
    rounds.bring()
    facts = Tables().read(lake.path(f"typed/{SOURCE}._own.item"))
    assert facts is not None
    assert sorted(facts["id"].to_pylist()) == [1, 2, 3]
    log = Tables().open(lake.path(changes_log(SOURCE)))
    assert log is not None
    _, large = split(log, pc.scalar(True), since=1, most=2)
    assert [*large] == ["_own.item"], "ends of transactions are not, however many"


def rename(item: Item, name: str) -> None:
    """Give the column beside the key another name."""
    item.columns[1].name = name
    item.tell(renamed=item.columns[1].attnum)


def test_ddl_that_copied_rows_have_seen_is_followed_by_facts_before_them(
    lake: Lake, item: Item
) -> None:
    rounds = Rounds(lake, item)
    rounds.log()
    rounds.bring()
    since = end_of(len(item.log))
    rename(item, "b")
    item.write("u", 1, {2: "in the rows that were copied"})
    install, up_to = copied(rounds), end_of(len(item.log))
    item.write("u", 1, {2: "after"})
    rounds.log()
    rounds.bring(install, without=[(since, up_to)])

    assert rounds.facts("b") == [("first",), ("in the rows that were copied",), ("after",)]


@pytest.mark.parametrize("then_rows", [True, False])
def test_rows_of_a_copy_follow_ddl_of_rounds_before_the_one_in_which_they_enter(
    lake: Lake, item: Item, then_rows: bool
) -> None:
    rounds = Rounds(lake, item)
    install = copied(rounds)
    rename(item, "b")
    item.write("u", 1, {2: "second"})
    rounds.log()
    rounds.bring()
    if then_rows:
        item.write("u", 1, {2: "third"})
    else:
        item.tell("create", table="else", oid=8)
    rounds.log()
    rounds.bring(install)

    assert rounds.facts("b")[:3] == [("first",), ("first",), ("second",)]
    assert "a" not in rounds.made_columns()


def test_the_first_rows_of_a_table_may_be_those_of_a_copy_before_ddl_of_an_earlier_round(
    lake: Lake, item: Item
) -> None:
    rounds = Rounds(lake, item)
    item.log.pop()
    install = copied(rounds)
    rename(item, "b")
    rounds.log()
    rounds.bring()
    rename(item, "c")
    item.write("u", 1, {2: "second"})
    rounds.log()
    rounds.bring(install)

    assert rounds.facts("c") == [("first",), ("second",)]


@pytest.mark.parametrize("more", [True, False])
def test_a_column_is_set_aside_once_where_a_longer_round_repeats_one_that_a_crash_ended(
    lake: Lake, item: Item, more: bool
) -> None:
    rounds = Rounds(lake, item)
    number = item.add("n", "int4")
    item.write("u", 1, {2: "second", 3: 5})
    rounds.log()
    rounds.bring()
    item.drop(number)
    item.add("n", "text")
    item.write("u", 1, {2: "third", 4: "77"})
    rounds.log()
    before = rounds.bring(noted=False)
    if more:
        item.write("u", 1, {2: "fourth", 4: "seven"})
        rounds.log()
    rounds.bring(before=before)

    assert rounds.facts("n", "n__int32")[1:3] == [(None, 5), ("77", None)]
