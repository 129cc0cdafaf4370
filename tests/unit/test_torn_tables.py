"""A derived table that cannot be opened is held where it is written; nothing else stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from kernel.errors import Incompatible
from lake.layout import Lake, events_log
from lake.rows import SmallTables
from lake.tables import TableAt
from pipeline.ddl.held_tables import NO_ORDER, Hold
from pipeline.history.shape import HistoryOf
from projections.serve.lake_tables import list_tables
from service.lake_documents import table_list, table_shown
from tests.support.lake.telling import STORE, ToldLake

PAID, PLACED = "typed/events.order.paid", "typed/events.order.placed"
HISTORY = "history/shop.public.item"
KEPT = HistoryOf(
    name=HISTORY, typed="typed/shop.public.item", key=("id",), identity=("id",), by_row=False
)


def tear(lake: Lake, name: str) -> None:
    """Leave what a disk that lost half a write leaves in the place of the next version."""
    log = Path(lake.path(name), "_delta_log")
    last = max(int(path.stem) for path in log.glob("*[0-9].json"))
    (log / f"{last + 1:020}.json").write_text("{torn")


def test_a_torn_history_is_lacking_until_it_is_held(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    told = ToldLake(lake)
    path = lake.path(HISTORY)
    brought = replace(told.derived.at(), tables={HISTORY: TableAt(version=0, as_of_epoch=1)})
    assert told.derived.lacks(brought, [KEPT]), "its folder was removed"
    write_deltalake(path, pa.table({"id": [1]}))
    assert not told.derived.lacks(brought, [KEPT])
    assert told.derived.lacks(replace(brought, tables={}), [KEPT]), "it was just asked for"
    tear(lake, HISTORY)
    assert told.derived.lacks(brought, [KEPT])
    held = {HISTORY: Hold(order=NO_ORDER, reason="torn", from_epoch=2)}
    caplog.clear()
    assert not told.derived.lacks(replace(brought, held=held), [KEPT])
    assert not caplog.records, "what is held is not told again at every look"
    assert told.derived.lacks(replace(brought, held=held), []), "nobody asks for it any more"


def test_a_hold_ends_with_what_asked_for_its_table(lake: Lake) -> None:
    """A history or a topic's table that nobody asks for is never tried, and was held for ever."""
    told = ToldLake(lake)
    told.tell("placed", {"n": 1})
    told.tell("paid", {"n": 2})
    told.epoch()
    brought = told.bring()
    hold = Hold(order=NO_ORDER, reason="torn", from_epoch=1)
    orphans = dict.fromkeys((HISTORY, "typed/topics.gone"), hold)
    last = told.manifest.last()
    assert last is not None
    left = told.derived.bring(replace(brought, held={**orphans, PAID: hold}), last, [])
    assert left.held.keys() <= {PAID}
    noted = told.manifest.projected()["typed"].held
    assert noted == left.held, "who waits reads it there"


def test_a_torn_table_without_new_rows_stops_no_other(lake: Lake) -> None:
    told = ToldLake(lake)
    told.tell("placed", {"n": 1})
    told.tell("paid", {"n": 2})
    told.epoch()
    told.bring()
    tear(lake, PAID)
    told.tell("placed", {"n": 3})
    told.epoch()
    assert told.bring().held == {}
    assert [row["n"] for row in told.rows("placed")] == [1, 3]
    told.tell("paid", {"n": 4})
    told.epoch()
    assert told.bring().held.keys() == {PAID}


def test_tables_that_stand_still_are_found_by_their_own_names_when_their_log_is_torn(
    lake: Lake,
) -> None:
    """One that is tried again meets the torn log: that is no reason to forget its name."""
    told = ToldLake(lake)
    told.tell("placed", {"n": 1})
    told.tell("paid", {"n": 2})
    told.epoch()
    told.bring()
    tear(lake, PAID)
    told.tell("paid", {"n": 3})
    told.epoch()
    assert told.bring().held.keys() == {PAID}
    told.tell("placed", {"n": 4})
    told.epoch()
    tear(lake, events_log(STORE))
    told.derived.try_now()
    assert told.bring().held.keys() == {PAID, "typed/events"}
    listed = {str(each["name"]): each["held"] for each in table_list(lake)}
    assert listed[PLACED] == listed["typed/events"]
    assert listed[PLACED] != listed[PAID]
    assert table_shown(lake, PLACED, commits=1)["held"] == listed[PLACED]


def test_a_small_table_that_is_torn_is_told_with_its_path_and_what_to_do(lake: Lake) -> None:
    """`wait`, `status` and others read the manifest by it; they showed a library's own error."""
    told = ToldLake(lake)
    told.tell("paid", {"n": 1})
    told.epoch()
    tear(lake, "epochs")
    for reader in (SmallTables(), SmallTables()):
        with pytest.raises(Incompatible, match=r"epochs cannot be read: .*Json") as refused:
            reader.select(lake.epochs, "SELECT epoch FROM rows")
        assert "<unknown>" not in refused.value.message
        assert "penstock restart pipeline" in refused.value.remedy


def test_a_table_without_a_commit_is_not_listed(lake: Lake) -> None:
    """It is being made: the list is not refused for it."""
    told = ToldLake(lake)
    told.tell("paid", {"n": 1})
    told.epoch()
    told.bring()
    Path(lake.path(PLACED), "_delta_log").mkdir(parents=True)
    found, unreadable = list_tables(lake)
    assert PAID in {table.name for table in found}
    assert PLACED not in {table.name for table in found}
    assert not unreadable
