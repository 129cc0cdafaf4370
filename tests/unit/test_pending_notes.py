"""Notes of one round in few commits, each of them once, and none lost to another one's error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kernel.errors import LeaseLost, Unavailable
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Projected
from projections.run import pending_notes
from projections.run.pending_notes import PendingNotes
from tests.support.lake.handmade import HandMade


def note(name: str, epoch: int) -> Projected:
    at = {name: TableAt(version=epoch, as_of_epoch=epoch)}
    return Projected(epoch=Epoch(epoch), name=name, tables=at)


@pytest.fixture
def made(tmp_path: Path) -> HandMade:
    made = HandMade(Lake.at(tmp_path / "lake"))
    for _ in range(3):
        made.epoch()
    return made


def noted(made: HandMade) -> dict[str, int]:
    return {name: done.epoch for name, done in Manifest(made.lake, Tables()).projected().items()}


def test_notes_of_a_round_are_one_commit(made: HandMade, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_notes, "LONGEST_S", 60.0)
    notes, before = PendingNotes(made.manifest), made.manifest.version()
    with notes.together():
        for name in ("one", "two", "three"):
            notes.add(note(name, 2), again=False)
            assert not notes.write_due()
        assert noted(made) == {}
    assert noted(made) == dict.fromkeys(("one", "two", "three"), 2)
    assert made.manifest.version() == before + 1
    assert made.manifest.noted("two") == 2


def test_a_note_waits_for_no_longer_than_it_may(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_notes, "LONGEST_S", 0.0)
    notes = PendingNotes(made.manifest)
    with notes.together():
        notes.add(note("one", 1), again=False)
        assert notes.write_due()
        assert noted(made) == {"one": 1}


def test_a_second_note_of_a_table_comes_behind_its_first(made: HandMade) -> None:
    notes = PendingNotes(made.manifest)
    with notes.together():
        for epoch in (1, 2):
            notes.add(note("one", epoch), again=False)
        notes.add(note("one", 2), again=True)
    found = Manifest(made.lake, Tables()).history_of("one")
    assert [done.epoch for done in found] == [1, 2, 2]


def test_what_was_noted_before_is_not_noted_twice(made: HandMade) -> None:
    PendingNotes(made.manifest).add(note("one", 2), again=False)
    notes = PendingNotes(Manifest(made.lake, Tables()))
    with notes.together():
        notes.add(note("one", 2), again=False)
        notes.add(note("two", 2), again=False)
    assert len(Manifest(made.lake, Tables()).history_of("one")) == 1
    assert noted(made) == {"one": 2, "two": 2}


def noted_of_three(made: HandMade) -> None:
    notes = PendingNotes(made.manifest)
    with notes.together():
        for name in ("one", "two", "three"):
            notes.add(note(name, 2), again=False)


def test_one_that_another_writer_noted_meanwhile_takes_no_other_with_it(made: HandMade) -> None:
    with made.tables.looked_at_once():
        made.manifest.version()
        Manifest(made.lake, Tables()).project(note("two", 3))
        noted_of_three(made)
    assert noted(made) == {"one": 2, "two": 3, "three": 2}


def test_one_that_is_refused_is_told_behind_all_others(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = made.manifest.project_all

    def refusing(notes: Sequence[tuple[Projected, bool]]) -> None:
        if any(done.name == "two" for done, _ in notes):
            raise LeaseLost("two has another writer")
        every(notes)

    monkeypatch.setattr(made.manifest, "project_all", refusing)
    with pytest.raises(LeaseLost, match="two"):
        noted_of_three(made)
    assert noted(made) == {"one": 2, "three": 2}


def test_what_storage_does_not_take_is_written_later(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = PendingNotes(made.manifest)
    with monkeypatch.context() as patch:

        def away(_: object) -> None:
            raise Unavailable("storage is away")

        patch.setattr(made.manifest, "project_all", away)
        with pytest.raises(Unavailable), notes.together():
            notes.add(note("one", 2), again=False)
    assert noted(made) == {}
    notes.add(note("two", 2), again=False)
    assert noted(made) == {"one": 2, "two": 2}
