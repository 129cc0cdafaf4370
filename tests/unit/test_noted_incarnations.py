"""What is noted of slots: the newest one stands, whoever writes last."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc import capture
from cdc.capture import CaptureStatus
from cdc.slots import SlotWatch, SourceServer
from cdc.upkeep import lifecycle
from cdc.upkeep.noted_incarnations import (
    forget_incarnation,
    incarnation_of,
    noted,
    record_incarnation,
    record_lost,
    renewing,
)
from kernel.errors import Cancelled, Incompatible
from kernel.positions import Lsn
from lake.layout import Lake
from projections.run.catalog import DeployedCatalog, Entry
from schemas.incarnations import Incarnation
from tests.support.lake.bulk import HandLake
from tests.support.lake.folding import SOURCE, TABLE, Done

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


def test_p4_a_server_that_ends_before_what_the_lake_has_gets_no_new_slot(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = HandLake(lake)
    hand.copy(Done("c", 1))
    # The END that comes last has no rows yet: its transaction is not complete.
    hand.source.commit(Done("c", 2))
    hand.epoch(rows=1)
    assert hand.cut() < hand.source.lsn
    found = list[CaptureStatus]()
    renewed = SimpleNamespace(scope=SimpleNamespace(tables=[TABLE]))
    monkeypatch.setattr(lifecycle, "ConnectClient", lambda _: nullcontext())
    monkeypatch.setattr(lifecycle, "status", lambda *_: found[-1])
    monkeypatch.setattr(lifecycle, "missing", lambda *_: [])
    monkeypatch.setattr(lifecycle, "captured_tables", lambda *_: {TABLE: None})
    monkeypatch.setattr(lifecycle, "start", lambda *_, **__: renewed)

    def resnapshot(lsn: int) -> lifecycle.Resnapshot:
        server = SourceServer(system="s", timeline=1, lsn=Lsn(lsn))
        watch = SlotWatch(slot=None, server=server, limit_bytes=None, alarm=None, lost="set back")
        found.append(CaptureStatus(source=SOURCE, connector=None, watch=watch, snapshot=""))
        site = cast(Any, SimpleNamespace(lake=lake.root, connect_url=""))
        return lifecycle.resnapshot(site, cast(Any, SimpleNamespace(name=SOURCE)))

    with pytest.raises(Incompatible) as refused:
        resnapshot(hand.source.lsn - 1)
    assert "another name" in str(refused.value.remedy)
    assert noted(lake, SOURCE) == (None, False)
    assert resnapshot(hand.source.lsn).renewed == "set back"


def test_p4_a_source_that_was_removed_is_not_added_again_where_the_lake_has_more(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = HandLake(lake)
    hand.copy(Done("c", 1))
    hand.source.commit(Done("c", 2))
    hand.epoch(rows=1)
    site = cast(Any, SimpleNamespace(lake=lake.root, folder="", name="w"))
    source = cast(
        Any, SimpleNamespace(name=SOURCE, full_dsn=lambda _: "", full_salt=lambda _: "", keys={})
    )
    record_incarnation(lake, SOURCE, FIRST)
    assert lifecycle.access_of(site, source).seen == 0, "it was not removed"
    forget_incarnation(lake, SOURCE)
    access = lifecycle.access_of(site, source)
    assert (access.retired, access.seen) == (FIRST, hand.source.lsn)

    def watch(lsn: int) -> SlotWatch:
        server = SourceServer(system="other", timeline=1, lsn=Lsn(lsn))
        return SlotWatch(slot=None, server=server, limit_bytes=None, alarm=None, lost=None)

    scope = SimpleNamespace(checks=(), tables={}, options={}, described={})
    desired = SimpleNamespace(name="", slot="", render=dict)
    monkeypatch.setattr(capture, "connected", lambda _: nullcontext())
    monkeypatch.setattr(capture, "scope_of", lambda *_, **__: scope)
    monkeypatch.setattr(capture, "connector_of", lambda *_, **__: desired)

    def admitted(*_: object) -> None:
        raise Cancelled("it is not refused")

    monkeypatch.setattr(capture, "_admit", admitted)
    connect = cast(Any, SimpleNamespace(config=lambda _: None, names=list))
    placement = cast(Any, SimpleNamespace(workspace="w"))
    for lsn, error in ((hand.source.lsn - 1, Incompatible), (hand.source.lsn, Cancelled)):
        monkeypatch.setattr(capture, "watch", lambda *_, at=lsn, **__: watch(at))
        with pytest.raises(error):
            capture.ensure(source, access, placement, connect)
