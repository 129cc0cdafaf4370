"""A table whose changes go to the log alone, and that nobody copies, does not look healthy."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from apps.capture import capture_site
from apps.settings import load
from cdc import capture
from cdc.capture import SourceAccess
from cdc.copies import table_copier
from cdc.copies.copy_wanted import stranded
from cdc.copies.table_copier import TableCopier
from cdc.sources import CONNECTOR, COPY
from cdc.upkeep import lifecycle
from kernel.errors import Unavailable
from lake.layout import Lake
from pipeline.commit.manifest import first_progress
from pipeline.commit.manifest_rows import Committed
from pipeline.ddl.held_tables import stranded_hold
from pipeline.installs.install_book import (
    HOLD,
    INSTALL,
    JOIN,
    STRAND,
    WANT,
    InstallEntry,
    hold,
)
from pipeline.position.progress import Progress
from pipeline.process.health import waiting_in
from schemas.incarnations import Incarnation
from service.lake_documents import table_list
from service.standstills import of_pipeline
from tests.support.lake.bulk import NAME, HandLake, some
from tests.support.lake.folding import SOURCE, TABLE, Done, registry

OTHER = "public.other"


@pytest.fixture
def hand(lake: Lake) -> HandLake:
    """A table that was copied and then fell out of those that the cut folds."""
    hand = HandLake(lake)
    hand.copy(*some(1, 2, 3))
    hand.epoch()
    copied = hand.ingest._progress.cut(SOURCE).copied
    assert copied == {TABLE}
    copied.clear()
    return hand


def strand(hand: HandLake, *tables: str) -> None:
    detail = {"tables": [*tables]}
    hand.book.put([InstallEntry(kind=STRAND, id=SOURCE, source=SOURCE, detail=detail)])


INCARNATION = SimpleNamespace(lost=None, slots=1)
DECLARED = SimpleNamespace(name=SOURCE, snapshot=CONNECTOR)
DEPLOYED = SimpleNamespace(slots={SOURCE: INCARNATION}, captures={SOURCE: {TABLE: None}})


def copier_of(hand: HandLake, folder: Path) -> TableCopier:
    """Return a copier of a source that has nothing to copy."""
    copier = TableCopier(capture_site(load(folder)), hand.lake, registry())
    copier._marked[SOURCE] = time.monotonic()
    return copier


def look(hand: HandLake, folder: Path) -> None:
    """Let a copier look at the source once."""
    copier_of(hand, folder)._look_at(cast(Any, DECLARED), cast(Any, DEPLOYED))


def told(done: Committed) -> dict[str, tuple[str, bool]]:
    """Return the command of each table that the pipeline says stands still, and if it lasts."""
    held, _ = waiting_in(done)
    return {each.name: (each.command, each.lasting) for each in of_pipeline({"held": held})}


def test_p4_p11_a_stranded_table_is_held_with_the_command_that_has_it_copied(
    hand: HandLake, tmp_path: Path
) -> None:
    hand.source.commit(Done("u", 1, name="to the log alone"))
    before = hand.epoch()
    state = hand.state()
    assert (state, told(before)) != (hand.source.state, {}), "it would be healthy and wrong"
    assert stranded(SOURCE, hand.book.entries(), [TABLE], first_progress(before), copied=()) == [
        TABLE
    ]
    look(hand, tmp_path)
    look(hand, tmp_path)
    assert [entry.kind for entry in hand.book.entries()].count(STRAND) == 1
    hand.source.commit(Done("d", 2))
    done = hand.epoch()
    command = f"penstock source resnapshot {SOURCE} --tables {TABLE} --yes"
    assert told(done) == {f"{SOURCE}.{TABLE}": (command, True)}
    assert hand.state() == state
    assert done.tables[NAME].as_of_epoch == before.epoch
    (listed,) = (each for each in table_list(hand.lake) if each["name"] == NAME)
    assert "nobody copies it" in str(listed["held"])
    progress = first_progress(done)
    assert stranded(SOURCE, hand.book.entries(), [TABLE], progress, copied=()) == []

    hand.announce(hand.stage())
    hand.source.commit(Done("c", 9))
    done = hand.epoch()
    assert told(done) == {}
    assert hand.state() == hand.source.state
    hand.source.commit(Done("u", 9, name="folded again"))
    hand.epoch()
    assert hand.state() == hand.source.state


def test_p11_what_is_folded_by_then_is_not_held(hand: HandLake) -> None:
    strand(hand, TABLE)
    hand.announce(hand.stage())
    hand.source.commit(Done("c", 9))
    done = hand.epoch()
    assert told(done) == {}
    assert hand.book.entries()[-2].number in first_progress(done).installs
    assert hand.state() == hand.source.state


def test_p11_what_is_told_while_the_cut_is_held_waits_for_its_release(hand: HandLake) -> None:
    hold(hand.lake, hand.tables, SOURCE)
    strand(hand, TABLE, OTHER)
    hand.source.commit(Done("c", 9))
    done = hand.epoch()
    assert told(done) == {}
    hand.announce(hand.stage(releases=True))
    hand.source.commit(Done("c", 10))
    done = hand.epoch()
    assert [*told(done)] == [f"{SOURCE}.{OTHER}"]


def test_a_copier_that_failed_once_does_not_say_so_for_ever(
    hand: HandLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copier = copier_of(hand, tmp_path)
    declared, entries = [DECLARED], copier._book.entries
    monkeypatch.setattr(table_copier, "load_all", lambda _: tuple(declared))
    monkeypatch.setattr(copier._deployed, "deployment", lambda: DEPLOYED)
    monkeypatch.setattr(copier._book, "entries", lambda: 1 / 0)
    copier.look()
    assert copier.states[SOURCE].startswith("waits: ")
    copier.look()
    assert [*copier.states] == [SOURCE], "it pauses before it tries again"
    monkeypatch.setattr(copier._book, "entries", entries)
    copier._pauses[SOURCE].until = 0.0
    copier.look()
    assert copier.states == {}, "nobody waits for a copy"
    copier.states[SOURCE] = "installs 3 tables"
    declared.clear()
    copier.look()
    assert copier.states == {}, "the source is gone"


AWAITED = {
    "install": InstallEntry(kind=INSTALL, id="i", source=SOURCE, number=7),
    "join": InstallEntry(kind=JOIN, id=SOURCE, source=SOURCE, detail={"tables": [TABLE]}),
    "strand": InstallEntry(
        kind=STRAND, id=SOURCE, source=SOURCE, detail={"tables": [TABLE]}, number=7
    ),
}


@pytest.mark.parametrize("kind", AWAITED)
def test_a_table_that_somebody_brings_on_is_not_stranded(hand: HandLake, kind: str) -> None:
    entry, progress = AWAITED[kind], first_progress(hand.ingest.last)
    if kind == "install":
        detail = hand.stage().entry().detail
        entry = InstallEntry(kind=kind, id="i", source=SOURCE, number=7, detail=detail)
    progress.cut(SOURCE).copied = {OTHER}
    assert stranded(SOURCE, [], [TABLE, OTHER], progress, copied=[]) == [TABLE]
    assert stranded(SOURCE, [entry], [TABLE, OTHER], progress, copied=[]) == []
    assert stranded(SOURCE, [], [TABLE, OTHER], progress, copied=[TABLE]) == []
    if entry.number:
        progress.installs.add(entry.number)
    else:
        joined = {"tables": [TABLE], "joined": True}
        want = InstallEntry(kind=WANT, id=SOURCE, source=SOURCE, detail=joined)
        assert stranded(SOURCE, [entry, want], [TABLE], progress, copied=[]) == [TABLE]
        return
    assert stranded(SOURCE, [entry], [TABLE, OTHER], progress, copied=[]) == [TABLE]


def test_no_table_is_stranded_where_the_cut_is_held_or_folds_all_or_the_table_is_held() -> None:
    progress = Progress()
    assert stranded(SOURCE, [], [TABLE], progress, copied=[]) == []
    progress.cut(SOURCE).copied = set()
    assert stranded(SOURCE, [], [TABLE], progress, copied=[]) == [TABLE]
    progress.cut(SOURCE).hold()
    assert stranded(SOURCE, [], [TABLE], progress, copied=[]) == []
    progress.cut(SOURCE).held = False
    progress.held[SOURCE] = {TABLE: stranded_hold(from_epoch=3)}
    assert stranded(SOURCE, [], [TABLE], progress, copied=[]) == []


COPIED = cast(Any, SimpleNamespace(name=SOURCE, snapshot=COPY))
FIRST = Incarnation(system="1", timeline=1, slots=1, since="0/0")
AGAIN = cast(Any, SimpleNamespace(slots={SOURCE: FIRST}, captures={SOURCE: {TABLE: None}}))


def copied(hand: HandLake) -> None:
    """Take in a copy that was read behind the source's first slot."""
    hand.announce(hand.stage(slots=1, releases=True))
    hand.source.commit(Done("c", 8))
    hand.epoch()
    assert hand.state() == hand.source.state


def test_p4_a_cut_that_is_held_once_more_gets_a_copy_of_all_that_releases_it(
    hand: HandLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(hand)
    copier, plans = copier_of(hand, tmp_path), list[tuple[bool, list[str]]]()
    monkeypatch.setattr(copier, "_streams", lambda _: True)
    monkeypatch.setattr(
        copier, "_copy", lambda _, plan, wanted, __: plans.append((plan.releases, [*wanted]))
    )
    copier._look_at(COPIED, AGAIN)
    assert plans == []
    hold(hand.lake, hand.tables, SOURCE, slots=1)
    hand.source.commit(Done("c", 9))
    hand.epoch()
    copier._look_at(COPIED, AGAIN)
    assert plans == [(True, [TABLE])]
    hand.announce(hand.stage(slots=1, releases=True))
    copier._look_at(COPIED, AGAIN)
    hand.source.commit(Done("c", 10))
    hand.epoch()
    copier._look_at(COPIED, AGAIN)
    assert len(plans) == 1
    assert hand.state() == hand.source.state


def test_p4_a_connector_that_is_made_again_holds_no_cut_that_was_released(
    hand: HandLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ensure(
        *_: object, before_start: Callable[[Incarnation | None], None], **__: object
    ) -> None:
        before_start(FIRST)
        raise Unavailable("that is all")

    monkeypatch.setattr(lifecycle, "allow_records", lambda *_: None)
    monkeypatch.setattr(lifecycle, "access_of", lambda *_: SourceAccess(dsn="", known=FIRST))
    monkeypatch.setattr(capture, "ensure", ensure)
    site = cast(Any, SimpleNamespace(lake=hand.lake.root, placement=None))

    def held() -> int:
        with pytest.raises(Unavailable):
            lifecycle.start(site, COPIED, cast(Any, None))
        return [entry.kind for entry in hand.book.entries()].count(HOLD)

    # The first is of the copy that the tables began with.
    assert held() == 2, "nothing was copied behind this slot"
    hand.announce(hand.stage(slots=1, releases=True))
    assert (held(), held()) == (2, 2)
