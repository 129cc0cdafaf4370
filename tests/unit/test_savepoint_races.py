"""A savepoint that is taken while old files are removed can be read, or it is refused."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyarrow import fs

from kernel.errors import Conflict, NotFound
from kernel.positions import Epoch
from lake import savepoints, storage
from lake.layout import Lake
from lake.removals import RESERVE_BYTES, Nobody, Removals
from lake.savepoint_states import SavepointState
from lake.savepoint_tables import kept_table
from lake.savepoints import UNFINISHED_AFTER, SavepointBook
from lake.tables import TableAt, Tables
from lake.upkeep import old_versions
from lake.upkeep.compaction import vacuum
from lake.writer import ArrowWriter, Guard
from tests.property.test_query_at_epochs import forget
from tests.support.lake.handmade import words
from tests.unit.test_savepoints import NEVER

NAME = "projection/report"


class World:
    """A table whose version of two files is an old one, which a savepoint may still keep."""

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self.root = lake.path(NAME)
        writer = ArrowWriter(Tables())
        for epoch in (1, 2):
            writer.append(self.root, words((epoch, "w"), epoch=epoch), Guard(NAME, Epoch(epoch)))
        self.kept = kept_table(DeltaTable(self.root), NAME)
        self.taker, self.remover = (SavepointBook(lake, Tables()) for _ in range(2))

    def take(self) -> None:
        try:
            self.taker.take("then", Epoch(2), [self.kept])
        except NotFound:
            assert SavepointState.KEPT not in self.states()

    def states(self) -> list[SavepointState]:
        return [each.state for each in self.taker.all() if each.name == "then"]

    def vacuum(self) -> None:
        at = {NAME: TableAt(version=DeltaTable(self.root).version(), as_of_epoch=0)}
        vacuum(self.lake, Tables(), at, retention=NEVER, keeper=self.remover)

    def trim(self) -> None:
        newest = {self.root: int(DeltaTable(self.root).version())}
        old_versions.trim(newest, most_bytes=0, keeper=self.remover, kept_for=NEVER)

    def drop(self) -> None:
        """Drop another savepoint, which alone has kept these files."""
        self.remover.drop(self.remover.named("other"))

    def forget(self) -> None:
        """Make the table's log forget the files that were removed from it."""
        soon = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
        DeltaTable(self.root).alter.set_table_properties(soon)
        forget(self.root)

    def there(self) -> int:
        return sum((Path(self.root) / path).exists() for path in self.kept.sizes)

    def is_sound(self) -> None:
        """See that what is kept can be read, and that nothing stays announced."""
        if SavepointState.KEPT in self.states():
            rows = self.kept.rows(self.lake).to_table()
            assert sorted(rows["id"].to_pylist()) == [1, 2]
        told = {file.name for file in (Path(self.lake.root) / "_removals").glob("*")}
        assert told <= {"reserve"}


REMOVERS = {"vacuum": World.vacuum, "trim": World.trim, "drop": World.drop}


@pytest.fixture(params=REMOVERS)
def remove(request: pytest.FixtureRequest) -> Callable[[World], None]:
    return REMOVERS[request.param]


@pytest.fixture
def world(lake: Lake, remove: Callable[[World], None]) -> World:
    made = World(lake)
    if remove is World.drop:
        made.remover.take("other", Epoch(2), [made.kept])
    DeltaTable(made.root).optimize.compact()
    if remove is World.drop:
        made.forget()
    return made


@pytest.mark.parametrize("at", ["before", "announced", "asked", "amid", "after"])
def test_whoever_takes_a_savepoint_between_two_steps_of_a_removal_sees_it(
    world: World, remove: Callable[[World], None], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def reached(step: str) -> None:
        if step not in steps:
            steps.append(step)
            if step == at:
                world.take()

    announced, held_in, delete = Removals.announced, SavepointBook.held_in, Nobody.remove

    @contextmanager
    def stepping(self: Removals, root: str, paths: Sequence[str]) -> Iterator[None]:
        reached("before")
        with announced(self, root, paths):
            reached("announced")
            yield
            reached("after")

    def asking(self: SavepointBook, root: str) -> frozenset[str]:
        held = held_in(self, root)
        if "announced" in steps:
            reached("asked")
        return held

    def deleting(self: Nobody, root: str, paths: Sequence[str]) -> list[str]:
        gone = []
        for path in paths:
            gone += delete(self, root, [path])
            reached("amid")
        return gone

    monkeypatch.setattr(Removals, "announced", stepping)
    monkeypatch.setattr(SavepointBook, "held_in", asking)
    monkeypatch.setattr(Nobody, "remove", deleting)
    remove(world)
    assert at in steps
    kept = at == "before"
    assert (world.states(), world.there()) == (
        ([SavepointState.KEPT], 2) if kept else ([SavepointState.DROPPED], 0)
    )
    world.is_sound()


@pytest.mark.parametrize("at", ["held", "looked", "seen"])
def test_whoever_removes_files_between_two_steps_of_a_savepoint_leaves_its_own(
    world: World, remove: Callable[[World], None], at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    among, missing = Removals.among, savepoints.missing_file

    def looking(self: Removals, root: str, paths: Sequence[str]) -> list[str]:
        if at == "held":
            remove(world)
        found = among(self, root, paths)
        if at == "looked":
            remove(world)
        return found

    def seeing(rows: object) -> str | None:
        found = missing(rows)
        if at == "seen":
            remove(world)
        return found

    monkeypatch.setattr(Removals, "among", looking)
    monkeypatch.setattr(savepoints, "missing_file", seeing)
    world.take()
    assert (world.states(), world.there()) == ([SavepointState.KEPT], 2)
    world.is_sound()


def test_what_a_remover_announced_that_died_is_kept_by_nobody_until_it_is_gone(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lake)
    DeltaTable(world.root).optimize.compact()

    def die(self: Nobody, root: str, paths: Sequence[str]) -> list[str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Nobody, "remove", die)
        with pytest.raises(KeyboardInterrupt):
            world.vacuum()
    world.remover.expire()
    with pytest.raises(NotFound, match="is not kept any more"):
        world.taker.take("then", Epoch(2), [world.kept])
    world.taker.expire()
    world.vacuum()
    assert world.there() == 0
    world.remover.expire()
    world.is_sound()


class Slow:
    """A file system that lets others look between the making of a file and its last line."""

    def __init__(self, files: fs.FileSystem, look: Callable[[], None]) -> None:
        self._files, self._look = files, look

    def __getattr__(self, name: str) -> object:
        return getattr(self._files, name)

    @contextmanager
    def open_output_stream(self, path: str) -> Iterator[Slow]:
        with self._files.open_output_stream(path) as self._stream:
            self._look()
            yield self

    def write(self, lines: bytes) -> None:
        first, rest = lines.split(b"\n", 1)
        for part in (first + b"\n", rest):
            self._stream.write(part)
            self._stream.flush()
            self._look()


def test_an_announcement_that_is_being_written_is_not_taken_for_one_that_is_done(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lake)
    place_of, looked = storage.place_of, list[str]()

    def look() -> None:
        monkeypatch.setattr(storage, "place_of", place_of)
        Removals(lake).forget_done()
        monkeypatch.setattr(storage, "place_of", slow)
        looked.append("once")

    def slow(uri: str) -> tuple[object, str]:
        files, place = place_of(uri)
        return Slow(files, look), place

    monkeypatch.setattr(storage, "place_of", slow)
    paths = ["gone.parquet", *world.kept.sizes]
    with Removals(lake).announced(world.root, paths):
        assert len(looked) == 3
        assert Removals(lake).among(world.root, paths) == paths
    world.is_sound()


def test_an_announcement_that_was_never_written_to_its_end_goes_after_an_hour(lake: Lake) -> None:
    folder = Path(lake.root) / "_removals"
    folder.mkdir()
    old, young = folder / "a.new", folder / "b.new"
    for file, age in ((old, 3601), (young, 3500)):
        file.touch()
        os.utime(file, (time.time() - age,) * 2)
    Removals(lake).forget_done()
    assert {*folder.iterdir()} == {young, folder / "reserve"}


def test_an_announcement_without_lines_is_not_forgotten(lake: Lake) -> None:
    file = Path(lake.root) / "_removals" / "a"
    file.parent.mkdir()
    file.touch()
    Removals(lake).forget_done()
    assert file.exists()


def test_files_go_where_there_is_no_room_left_to_announce_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lake)
    DeltaTable(world.root).optimize.compact()
    world.remover.expire()
    reserve = Path(lake.root) / "_removals" / "reserve"
    assert reserve.stat().st_size == RESERVE_BYTES
    remove, announced = Nobody.remove, list[bool]()

    def full(uri: str, path: str, content: bytes) -> None:
        Path(f"{path}.new").touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    def noting(self: Nobody, root: str, paths: Sequence[str]) -> list[str]:
        announced.append(Removals(lake).among(root, paths) == paths)
        return remove(self, root, paths)

    monkeypatch.setattr(storage, "write_whole", full)
    monkeypatch.setattr(Nobody, "remove", noting)
    world.vacuum()
    assert (world.there(), announced) == (0, [True])
    assert reserve.read_bytes() == b"\n" * RESERVE_BYTES, "it is there for the next one"
    world.is_sound()

    reserve.unlink()
    with pytest.raises(OSError, match="No space left"):
        world.remover.remove(world.root, ["gone.parquet"])


def test_a_savepoint_that_was_dropped_while_its_taker_stood_still_is_not_kept(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(lake)
    DeltaTable(world.root).optimize.compact()
    missing = savepoints.missing_file

    def standing_still(rows: object) -> str | None:
        found = missing(rows)
        world.remover.expire(datetime.now(UTC) + UNFINISHED_AFTER)
        world.vacuum()
        return found

    monkeypatch.setattr(savepoints, "missing_file", standing_still)
    with pytest.raises(Conflict, match="then was dropped meanwhile"):
        world.taker.take("then", Epoch(2), [world.kept])
    assert (world.states(), world.there()) == ([], 0)
    world.is_sound()


def test_a_savepoint_that_is_kept_at_last_is_not_dropped_as_one_that_was_left(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever expires savepoints has looked before its taker went on."""
    world = World(lake)
    all_ = SavepointBook.all
    with monkeypatch.context() as patch:
        patch.setattr(SavepointBook, "_kept", lambda self, taking: taking)
        world.take()
    before = all_(world.remover)
    assert [each.state for each in before] == [SavepointState.TAKING]
    world.taker._kept(before[0])
    seen = [before]

    def stale(self: SavepointBook) -> list[savepoints.Savepoint]:
        return seen.pop() if seen and self is world.remover else all_(self)

    monkeypatch.setattr(SavepointBook, "all", stale)
    assert world.remover.expire(datetime.now(UTC) + UNFINISHED_AFTER) == []
    world.vacuum()
    assert (world.states(), world.there()) == ([SavepointState.KEPT], 2)
    world.is_sound()
