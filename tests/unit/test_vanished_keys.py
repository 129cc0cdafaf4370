"""Keys that a copy takes away are known by the names that they have by then."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lake.layout import Lake
from lake.tables import Tables
from pipeline.installs.install_book import ALL, Install
from pipeline.installs.vanished_keys import Vanished, gone_keys
from schemas.registry import MemoryRegistry
from tests.support.lake.followed_item import NAME, FollowedItem
from tests.support.sources.ddl_copies import copied

TABLE = "public.orders"


@pytest.mark.parametrize("key", ["op", "number"])
@pytest.mark.parametrize("soft", [False, True])
def test_a_key_that_was_renamed_while_its_table_stood_still_vanishes(
    tmp_path: Path, soft: bool, key: str
) -> None:
    lake, tables = Lake.at(tmp_path / "lake"), Tables()
    before = pa.table({"op": [88, 89], "said": ["a", "b"]})
    after = pa.table({"number": [88, 90], "said": ["a", "c"], "_deleted": [False, False]})
    for name, rows in (("before", before), ("after", after)):
        write_deltalake(lake.path(name), rows)
    known, built = tables.open(lake.path("before")), tables.open(lake.path("after"))
    assert known is not None
    assert built is not None
    install = read(key)
    gone = Vanished(lake, tables, MemoryRegistry(), install, called={"op": "number"})
    gone.note(known, built, soft=soft)
    kept = gone_keys(lake, tables, source="shop", table=TABLE, install="i1")
    assert kept is not None
    assert kept.to_pylist() == [{"number": 89}]
    rows = tables.read(lake.path("after"))
    assert rows is not None
    marked = [row for row in rows.to_pylist() if row["_deleted"]]
    assert marked == ([{"number": 89, "said": "b", "_deleted": True}] if soft else [])


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("renamed", ["before", "after", "apart"])
def test_a_key_that_is_renamed_while_its_table_is_copied_vanishes(
    lake: Lake, soft: bool, renamed: str
) -> None:
    followed = FollowedItem(lake, soft=soft)
    item = followed.item
    item.tell("describe")
    for key in (1, 2, 3):
        item.write("c", key)
    followed.epoch()
    item.write("d", 2)
    followed.epoch()
    followed.bring()
    table = followed.tables.open(lake.path(NAME))
    assert table is not None
    strange = {"id": [7], **({"_deleted": [False]} if soft else {})}
    shape = followed.tables.columns(lake.path(NAME), table.version())
    write_deltalake(table, pa.table(strange).cast(shape), mode="append")
    if renamed == "before":
        install = rename_key(followed)
    else:
        install = copied(followed, soft=soft)
        item.write("d", 3)
        rename_key(followed)
    if renamed == "apart":
        followed.epoch()
    item.write("u", 1)
    followed.announce(install)
    followed.epoch()
    assert not followed.bring().held

    rows = followed.tables.read(lake.path(NAME))
    assert rows is not None
    alive = [row["number"] for row in rows.to_pylist() if not row.get("_deleted")]
    assert sorted(alive) == [row["number"] for row in item.expected()]
    assert rows.num_rows == (4 if soft else len(alive))
    ends = [key for operation, key in followed.facts("_operation", "number") if operation == "d"]
    assert sorted(map(str, ends)) == ["2", *(["3"] if renamed != "before" else []), "7"]


def rename_key(followed: FollowedItem) -> Install:
    """Give the key another name; copy the table then."""
    followed.item.columns[0].name = "number"
    followed.item.tell(renamed=1)
    return copied(followed, soft=followed.soft)


@pytest.mark.parametrize("called", [{}, {"price": "cost"}])
def test_a_marked_row_keeps_the_values_that_its_columns_cannot_hold(
    lake: Lake, called: dict[str, str]
) -> None:
    column = called.get("price", "price")
    tables, none = Tables(), pa.array([None], pa.decimal128(10, 2))
    before = pa.table({"id": [1], "price": none, "_exact": ['{"price":"NaN"}'], "_deleted": [True]})
    after = pa.table({"id": [2], column: none, "_deleted": [False]})
    for name, rows in (("before", before), ("after", after)):
        write_deltalake(lake.path(name), rows)
    known, built = tables.open(lake.path("before")), tables.open(lake.path("after"))
    assert known is not None
    assert built is not None
    gone = Vanished(lake, tables, MemoryRegistry(), read("id"), called=called)
    gone.note(known, built, soft=True)
    rows = Tables().read(lake.path("after"))
    assert rows is not None
    said = {row["id"]: (row["_exact"], row["_deleted"]) for row in rows.to_pylist()}
    assert said == {1: (f'{{"{column}":"NaN"}}', True), 2: (None, False)}


def read(key: str) -> Install:
    """Describe a copy of a table with one key column."""
    return Install(
        id="i1",
        source="shop",
        table=TABLE,
        kind=ALL,
        low=None,
        high=None,
        lsn=1,
        columns=(),
        keys=(key,),
        rows=0,
        read_at=datetime(2013, 1, 1, tzinfo=UTC),
        lsns=(),
    )
