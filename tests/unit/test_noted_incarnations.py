"""What is noted of slots: the newest one stands, whoever writes last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.slots import SourceServer
from cdc.upkeep.noted_incarnations import (
    forget_incarnation,
    incarnation_of,
    noted,
    record_incarnation,
    record_lost,
    renewing,
)
from kernel.positions import Lsn
from lake.layout import Lake
from projections.run.catalog import DeployedCatalog, Entry
from schemas.incarnations import Incarnation

FIRST = Incarnation(system="s", timeline=1, slots=1, since="0/1")
SECOND = replace(FIRST, slots=2, since="0/9")


def test_a_keeper_that_looked_before_does_not_undo_a_newer_slot(lake: Lake) -> None:
    record_incarnation(lake, "shop", FIRST)
    record_lost(lake, "shop", FIRST, "it is gone")
    record_incarnation(lake, "shop", SECOND)
    record_incarnation(lake, "shop", FIRST.on(2))
    assert incarnation_of(lake, "shop") == SECOND
    record_lost(lake, "shop", FIRST, "it is gone")
    assert incarnation_of(lake, "shop") == SECOND
    record_incarnation(lake, "shop", SECOND.on(2))
    assert incarnation_of(lake, "shop") == SECOND.on(2)


def test_a_slot_that_is_lost_is_not_found_again_under_its_number(lake: Lake) -> None:
    record_incarnation(lake, "shop", FIRST)
    record_lost(lake, "shop", FIRST, "it is gone")
    record_incarnation(lake, "shop", FIRST.on(2))
    found = incarnation_of(lake, "shop")
    assert found is not None
    assert found.lost == "it is gone"


def test_a_source_that_was_removed_is_not_brought_back_by_who_looked_before(lake: Lake) -> None:
    record_incarnation(lake, "shop", FIRST)
    forget_incarnation(lake, "shop")
    record_incarnation(lake, "shop", FIRST.on(2))
    assert noted(lake, "shop") == (FIRST, True)
    record_incarnation(lake, "shop", SECOND)
    assert noted(lake, "shop") == (SECOND, False)


def test_a_slot_that_is_about_to_be_replaced_is_lost_before(lake: Lake) -> None:
    server = SourceServer(system="s", timeline=1, lsn=Lsn(5))
    renewing(lake, "new", server, "asked for")
    record_incarnation(lake, "shop", FIRST)
    renewing(lake, "shop", server, "asked for")
    for name in ("new", "shop"):
        found = incarnation_of(lake, name)
        assert found is not None
        assert (found.slots, found.lost) == (1, "asked for")


def test_a_slot_that_is_replaced_while_a_keeper_notes_the_old_one_stays(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper looked before the new slot was noted, and writes after that."""
    record_incarnation(lake, "shop", FIRST)
    look, met = DeployedCatalog.entries, list[None]()

    def entries(self: DeployedCatalog) -> list[Entry]:
        found = look(self)
        if not met:
            met.append(None)
            record_incarnation(lake, "shop", SECOND)
        return found

    monkeypatch.setattr(DeployedCatalog, "entries", entries)
    record_lost(lake, "shop", FIRST, "it is gone")
    assert met
    assert incarnation_of(lake, "shop") == SECOND
