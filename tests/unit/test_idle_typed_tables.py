"""Typed tables that nothing comes to: which version of theirs is named."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake.layout import Lake
from lake.upkeep.compaction import compact
from lake.writer import Guard
from pipeline.commit.manifest_rows import TYPED
from pipeline.history.tables import HistoryTables
from pipeline.typed.tables import TypedTables
from projections.run.derived_tables import DerivedTables
from projections.serve.query import ask
from schemas.registry import MemoryRegistry
from tests.support.lake.handmade import HandMade

NAME = "typed/events.thing.told"


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number], "_epoch": [1]})


def test_an_idle_table_is_named_as_its_compaction_left_it(lake: Lake) -> None:
    """The files of the version before are removed in the end."""
    made = HandMade(lake)
    made.epoch()
    for number in range(99):
        made.writer.append(lake.path(NAME), rows(number), Guard(f"part {number}", Epoch(1)))
    made.derive({NAME: rows(99)}, 1)
    derived = DerivedTables(
        lake,
        made.tables,
        made.manifest,
        TypedTables(lake, made.tables, MemoryRegistry()),
        # There are no histories.
        cast("HistoryTables", None),
    )
    before = derived.at().tables[NAME].version
    assert compact(lake, made.tables, [NAME]) == [NAME]
    made.epoch()
    last = made.manifest.last()
    assert last is not None
    derived.bring(derived.at(), last, [])
    named = made.manifest.projected()[TYPED].tables[NAME]
    assert (named.version, named.as_of_epoch) == (before + 1, 1)
    DeltaTable(lake.path(NAME)).vacuum(0, dry_run=False, enforce_retention_duration=False)
    count = ask(lake, 'SELECT count(*) AS rows FROM typed."events.thing.told"').rows
    assert count["rows"].to_pylist() == [100]
