"""Which places take builds of another lake, and what a build leaves of those before it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from apps.cli.replay_places import told_there
from kernel.errors import Cancelled, Conflict, InvalidRequest, NotFound, Unavailable
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from replay.book import Replay, ReplayBook, State
from replay.build import Builder
from replay.cancel import cancel, remove_abandoned, remove_files
from replay.copies import (
    EPOCH_KEY,
    claim_place,
    put_in_place,
    refuse_base,
    refuse_place,
    remove_older,
)
from replay.generations import generation_name
from replay.planning import next_generation
from replay.slices import SlicedBuild, Slicing, fingerprint_of
from replay.starts import Start
from replay.subject import Site, subject_of
from replay.verify import verify
from tests.support.lake.handmade import SQL, HandMade, NoSpark, told, words

NAME = "report"


@pytest.fixture
def made(lake: Lake) -> HandMade:
    handmade = told(lake)
    handmade.deploy(NAME)
    handmade.run(NAME, words((1, "a"), (2, "b")), 1)
    return handmade


@pytest.fixture
def there(made: HandMade, tmp_path: Path) -> Site:
    return replace(made.site, into=Lake.named(tmp_path / "sandbox"))


def begun(there: Site, *rows: tuple[int, str], generation: int = 1) -> Replay:
    """Do as a build does until its slices are there."""
    claim_place(there, NAME)
    path = there.place.path(generation_name(NAME, generation))
    ArrowWriter(Tables()).append(path, words(*rows), Guard("slices", Epoch(1)))
    text = SQL.format(name=NAME, key="id")
    replay = Replay(
        name=NAME,
        generation=generation,
        base=1,
        state=State.BUILDING,
        epoch=Epoch(1),
        include_late=False,
        text=text,
        base_text=text,
    )
    remove_older(there, replay)
    return ReplayBook(there.place, Tables()).record(replay)


def built(there: Site, *rows: tuple[int, str], generation: int = 1) -> Replay:
    replay = begun(there, *rows, generation=generation)
    put_in_place(there, replay, Epoch(1))
    return ReplayBook(there.place, Tables()).record(replay.now(State.BUILT))


def rows_there(there: Site) -> list[tuple[int, str]]:
    table = Tables().read(there.place.path(f"projection/{NAME}"))
    assert table is not None
    return sorted((row["id"], row["word"]) for row in table.to_pylist())


@pytest.mark.parametrize("below", ["", "projection/report", "sandbox"])
def test_a_lake_takes_no_builds_of_its_own_beside_its_generations(lake: Lake, below: str) -> None:
    with pytest.raises(Conflict, match="is the lake that is read"):
        refuse_place(lake, Lake.named(f"{lake.root}/{below}"))


def test_the_lake_of_another_workspace_and_a_table_take_no_builds(
    lake: Lake, tmp_path: Path
) -> None:
    other = HandMade(Lake.at(tmp_path / "other"))
    refuse_place(lake, other.lake)
    other.epoch()
    with pytest.raises(Conflict, match="the lake of another workspace"):
        refuse_place(lake, other.lake)
    write_deltalake(tmp_path / "table", words((1, "a")))
    with pytest.raises(Conflict, match="is a table itself"):
        refuse_place(lake, Lake.named(tmp_path / "table"))


def test_what_else_is_there_is_left_alone(there: Site) -> None:
    folder = Path(there.place.path(f"projection/{NAME}"))
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(Conflict, match="holds something else: files of no table"):
        claim_place(there, NAME)
    (folder / "notes.txt").unlink()
    claim_place(there, NAME)
    claim_place(there, NAME)
    with pytest.raises(Conflict, match=f"projection {NAME} of {there.lake.root}"):
        claim_place(replace(there, lake=Lake.named("/another")), NAME)


def test_of_two_that_make_the_table_at_once_both_find_it(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Path(there.place.path(f"projection/{NAME}")) / "_delta_log"
    log.mkdir(parents=True)
    (log / "_commit_of_another.json.tmp").write_text("{}")
    create = DeltaTable.create

    def overtaken(*words: Any, **options: Any) -> DeltaTable:
        create(*words, **options)
        raise CommitFailedError("Protocol changed since last commit")

    monkeypatch.setattr(DeltaTable, "create", overtaken)
    claim_place(there, NAME)
    claim_place(there, NAME)


def test_a_place_that_cannot_be_written_is_told(there: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        claim_place(replace(there, into=Lake.named(tmp_path / "file")), NAME)


def test_a_build_is_the_table_there_at_once_and_the_lake_has_nothing_of_it(
    made: HandMade, there: Site
) -> None:
    before = sorted(Path(made.lake.root).rglob("*"))
    replay = built(there, (1, "a"), (2, "b"))
    assert rows_there(there) == [(1, "a"), (2, "b")]
    put_in_place(there, replay, Epoch(1))
    table = DeltaTable(there.place.path(f"projection/{NAME}"))
    assert table.version() == 1, "once more changes nothing"
    assert table.history(1)[0][EPOCH_KEY] == "1"
    assert f"projection {NAME} of {made.lake.root}" in (table.metadata().description or "")
    assert verify(there, NAME).equal
    assert ReplayBook(there.place, Tables()).of(NAME)[-1].state is State.VERIFIED
    assert sorted(Path(made.lake.root).rglob("*")) == before
    assert next_generation(made.site, NAME) == 2
    assert next_generation(there, NAME) == 2


def test_a_later_build_takes_the_place_and_the_one_before_stays_until_the_next(
    there: Site,
) -> None:
    built(there, (1, "a"))
    built(there, (1, "a"), (2, "x"), generation=2)
    assert rows_there(there) == [(1, "a"), (2, "x")]
    folder = Path(there.place.path(f"projection/{NAME}")) / "_gen"
    assert sorted(each.name for each in folder.iterdir()) == ["1", "2"]
    with pytest.raises(NotFound, match="is not the table any more"):
        verify(there, NAME, generation=1)
    assert verify(there, NAME).rows.differing == 1
    built(there, (1, "a"), (2, "b"), generation=4)
    assert sorted(each.name for each in folder.iterdir()) == ["2", "4"]
    assert verify(there, NAME).equal
    with pytest.raises(Conflict, match="generation 4 of report is the table at"):
        cancel(there, NAME)


def test_a_build_that_was_cancelled_is_not_put_in_place(there: Site) -> None:
    built(there, (1, "a"))
    late = begun(there, (1, "x"), generation=2)
    ReplayBook(there.place, Tables()).record(late.now(State.CANCELLED))
    with pytest.raises(Cancelled):
        put_in_place(there, late, Epoch(1))
    remove_files(there, late)
    assert rows_there(there) == [(1, "a")]
    folder = Path(there.place.path(f"projection/{NAME}")) / "_gen"
    assert [each.name for each in folder.iterdir()] == ["1"]


def test_a_build_that_was_cancelled_as_it_became_the_table_keeps_its_files(
    there: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replay.cancel.ABANDONED_AFTER", timedelta(0))
    replay = built(there, (1, "a"))
    ReplayBook(there.place, Tables()).record(replay.now(State.CANCELLED))
    remove_files(there, replay)
    assert remove_abandoned(there, NAME) == []
    assert rows_there(there) == [(1, "a")]


def test_a_build_whose_place_another_one_took_can_be_cancelled(there: Site) -> None:
    built(there, (1, "a"))
    built(there, (1, "b"), generation=2)
    assert cancel(there, NAME, generation=1).state is State.CANCELLED
    assert rows_there(there) == [(1, "b")]


def test_a_build_that_is_gone_on_with_looks_what_is_in_its_place_by_then(there: Site) -> None:
    replay = begun(there, (1, "a"))
    folder = Path(there.place.path(f"projection/{NAME}"))
    rmtree(folder / "_delta_log")
    with pytest.raises(Conflict, match="files of no table"):
        put_in_place(there, replay, Epoch(1))
    write_deltalake(folder, words((7, "mine")))
    with pytest.raises(Conflict, match="another table"):
        put_in_place(there, replay, Epoch(1))


def test_nobody_goes_on_with_the_build_of_another_lake_of_the_same_name(
    made: HandMade, there: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slicing = Slicing(columns=("id",), slices=4)
    build = SlicedBuild(
        claim="me",
        up_to=Epoch(1),
        slicing=slicing,
        done=1,
        rows=4,
        later=0,
        seconds=(),
        fingerprint=fingerprint_of(subject_of(there, NAME).plan, slicing),
        rate=None,
    )
    stopped = begun(there, (1, "a")).now(State.STOPPED, detail=build.detail)
    ReplayBook(there.place, Tables()).record(stopped)
    monkeypatch.setattr(Builder, "_go_on", lambda _, replay, *__: replay)
    other = told(Lake.at(tmp_path / "theirs"))
    other.deploy(NAME)
    theirs = Builder(NoSpark(), replace(other.site, into=there.into), lambda _: None)
    for asked in (theirs.build, theirs.resume):
        with pytest.raises(Conflict, match=f"holds something else: .* of {made.lake.root}"):
            asked(NAME)
    assert Builder(NoSpark(), there, lambda _: None).build(NAME).state is State.BUILDING


def test_keys_are_mended_in_the_live_table_alone(there: Site) -> None:
    refuse_base(replace(there, into=None), Start(where="id = 1"))
    with pytest.raises(InvalidRequest, match="exclude each other"):
        refuse_base(there, Start(where="id = 1"))


def test_commands_that_an_error_tells_name_the_lake() -> None:
    def command(*, lake: str | None) -> None:
        raise Conflict(
            json.dumps(lake),
            remedy="penstock replay cancel report, then penstock replay apply report --sql FILE",
        )

    with pytest.raises(Conflict) as raised:
        told_there(command)(lake="/x")
    assert raised.value.remedy == (
        "penstock replay cancel report --lake /x, "
        "then penstock replay apply report --lake /x --sql FILE"
    )
    with pytest.raises(Conflict) as raised:
        told_there(command)(lake="/my lakes/x")
    assert "cancel report --lake '/my lakes/x', then" in raised.value.remedy
    with pytest.raises(Conflict) as raised:
        told_there(command)(lake=None)
    assert "--lake" not in raised.value.remedy


def test_a_build_of_other_columns_leaves_said_whose_the_table_is(there: Site) -> None:
    built(there, (1, "a"))
    path = there.place.path(generation_name(NAME, 2))
    wider = words((1, "a"), length=[1], was=[1.5])
    ArrowWriter(Tables()).append(path, wider, Guard("more", Epoch(1)))
    built(there, (2, "b"), generation=2)
    claim_place(replace(there, tables=Tables()), NAME)
    table = DeltaTable(there.place.path(f"projection/{NAME}"))
    assert {"length", "was"} <= {each.name for each in table.schema().fields}
