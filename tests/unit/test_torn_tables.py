"""A derived table that cannot be opened is held where it is written; nothing else stops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from projections.log.layout import Lake
from projections.log.tables import TableAt
from projections.state.held import NO_ORDER, Hold
from projections.state.history import HistoryOf
from tests.support.lake.telling import ToldLake

HISTORY = "history/shop.public.item"
KEPT = HistoryOf(
    name=HISTORY, typed="typed/shop.public.item", key=("id",), identity=("id",), by_row=False
)


def test_a_torn_history_is_lacking_until_it_is_held(lake: Lake) -> None:
    told = ToldLake(lake)
    path = lake.path(HISTORY)
    brought = replace(told.derived.at(), tables={HISTORY: TableAt(version=0, as_of_epoch=1)})
    assert told.derived.lacks(brought, [KEPT]), "its folder was removed"
    write_deltalake(path, pa.table({"id": [1]}))
    assert not told.derived.lacks(brought, [KEPT])
    assert told.derived.lacks(replace(brought, tables={}), [KEPT]), "it was just asked for"
    (Path(path) / "_delta_log" / f"{1:020}.json").write_text("{torn")
    assert told.derived.lacks(brought, [KEPT])
    held = {HISTORY: Hold(order=NO_ORDER, reason="torn", from_epoch=2)}
    assert not told.derived.lacks(replace(brought, held=held), [KEPT])


def test_a_torn_table_without_new_rows_stops_no_other(lake: Lake) -> None:
    told = ToldLake(lake)
    told.tell("placed", {"n": 1})
    told.tell("paid", {"n": 2})
    told.epoch()
    told.bring()
    torn = Path(lake.path("typed/events.order.paid")) / "_delta_log"
    (torn / f"{len(list(torn.glob('*.json'))):020}.json").write_text("{torn")
    told.tell("placed", {"n": 3})
    told.epoch()
    assert told.bring().held == {}
    assert [row["n"] for row in told.rows("placed")] == [1, 3]
    told.tell("paid", {"n": 4})
    told.epoch()
    assert told.bring().held.keys() == {"typed/events.order.paid"}
