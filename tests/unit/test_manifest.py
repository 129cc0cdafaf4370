from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from kernel.errors import Conflict, LeaseLost, NotFound
from kernel.positions import CLOSED, Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from pipeline.commit.epoch_memory import REMEMBERED, EpochMemory
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed, Projected
from pipeline.position.progress import Progress


def bound(epoch: int, end: int, run: str = "a") -> Bound:
    return Bound(
        epoch=Epoch(epoch),
        run_id=run,
        batch_id=0,
        start={"t": {"0": 0}},
        end={"t": {"0": end}},
    )


def committed(epoch: int) -> Committed:
    return Committed(
        epoch=Epoch(epoch),
        run_id="a",
        batch_id=0,
        end={"t": {"0": 1}},
        progress=Progress().to_json(),
        heads={"s": epoch},
        cuts={},
        pending_from={},
        tables={"log/x": TableAt(version=epoch, as_of_epoch=epoch)},
        counts={"events": 1},
        timings_ms={},
        at=datetime.now(UTC),
    )


def test_an_epoch_is_bound_once_and_finished_by_whoever_comes_next(lake: Lake) -> None:
    manifest = Manifest(lake, Tables())
    assert manifest.unfinished() is None
    manifest.bind(bound(1, 5))
    manifest.bind(bound(1, 5))
    next_one = Manifest(lake, Tables())
    assert next_one.unfinished() == bound(1, 5)
    assert next_one.last() is None
    next_one.commit(committed(1))
    next_one.commit(committed(1))
    assert next_one.unfinished() is None
    last = next_one.last()
    assert last is not None
    assert last.epoch == 1
    assert [done.epoch for done in next_one.between(Epoch(0), Epoch(9))] == [1]


def test_two_runs_cannot_bind_one_epoch_to_different_offsets(lake: Lake) -> None:
    first, second = Manifest(lake, Tables()), Manifest(lake, Tables())
    assert second.unfinished() is None
    first.bind(bound(1, 5, run="a"))
    with pytest.raises(LeaseLost):
        second.bind(bound(1, 9, run="b"))


def test_how_far_a_projection_has_come_is_its_newest_row(lake: Lake) -> None:
    manifest = Manifest(lake, Tables())
    for epoch in (1, 3):
        tables = {"projection/p": TableAt(version=epoch, as_of_epoch=epoch)}
        manifest.project(Projected(epoch=Epoch(epoch), name="projection/p/g1", tables=tables))
    assert manifest.projected()["projection/p/g1"].epoch == 3
    assert [run.epoch for run in manifest.history_of("projection/p/g1")] == [1, 3]
    with pytest.raises(NotFound):
        manifest.at(Epoch(1))


def test_the_cursor_of_a_closed_writer_is_noted_as_no_epoch(lake: Lake) -> None:
    manifest = Manifest(lake, Tables())
    manifest.bind(bound(1, 5))
    manifest.commit(committed(1))
    with pytest.raises(Conflict, match="projection/p/g1 was closed"):
        manifest.project(Projected(epoch=CLOSED, name="projection/p/g1", tables={}))
    last = manifest.last()
    assert last is not None
    assert last.epoch == 1


def test_what_an_epoch_is_made_of_is_read_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, manifest = Manifest(lake, Tables()), Manifest(lake, Tables())
    for epoch in range(1, 6):
        writer.bind(bound(epoch, epoch))
        writer.commit(committed(epoch))
    first = manifest.between(Epoch(1), Epoch(4))
    monkeypatch.setattr(Tables, "read", lambda *_, **__: pytest.fail("it was read already"))
    assert manifest.between(Epoch(1), Epoch(4)) == first
    assert [done.epoch for done in first] == [2, 3, 4]
    assert manifest.between(Epoch(2), Epoch(3)) == first[1:2]
    assert manifest.at(Epoch(4)) == first[-1]
    assert manifest.between(Epoch(4), Epoch(4)) == []
    monkeypatch.undo()
    assert [done.epoch for done in manifest.between(Epoch(0), Epoch(9))] == [1, 2, 3, 4, 5]
    for epoch in range(6, 6 + 2 * REMEMBERED):
        writer.bind(bound(epoch, epoch))
        writer.commit(committed(epoch))
    assert len(manifest.between(Epoch(0), Epoch(999))) == 5 + 2 * REMEMBERED
    assert manifest.at(Epoch(1)).heads == {"s": 1}


def test_what_this_process_commits_is_not_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = EpochMemory()
    writer = Manifest(lake, Tables(), memory=memory)
    reader = Manifest(lake, Tables(), memory=memory)
    for epoch in range(1, 4):
        writer.bind(bound(epoch, epoch))
        writer.commit(committed(epoch))
    with monkeypatch.context() as read:
        read.setattr(Tables, "read", lambda *_, **__: pytest.fail("it is known"))
        last = reader.last()
        assert last is not None
        assert last.epoch == 3
        assert [done.epoch for done in reader.between(Epoch(0), Epoch(3))] == [1, 2, 3]
    other = Manifest(lake, Tables())
    other.bind(bound(4, 4))
    other.commit(replace(committed(4), heads={"s": 40}))
    writer.commit(committed(4))
    last = reader.last()
    assert last is not None
    assert (last.epoch, last.heads) == (4, {"s": 40}), "what came first is what counts"


def test_who_notes_a_table_knows_what_it_noted(lake: Lake) -> None:
    manifest = Manifest(lake, Tables())
    for epoch in (1, 2, 3):
        manifest.bind(bound(epoch, epoch))
        manifest.commit(committed(epoch))
    other = Manifest(lake, Tables())
    other.project(Projected(epoch=Epoch(2), name="projection/p/g1", tables={}))
    # It is there already, and left out.
    manifest.project(Projected(epoch=Epoch(1), name="projection/p/g1", tables={}))
    assert manifest.noted("projection/p/g1") == 2
    manifest.project(Projected(epoch=Epoch(3), name="projection/p/g1", tables={}))
    manifest.project(Projected(epoch=Epoch(3), name="projection/p/g1", tables={}), again=True)
    assert manifest.noted("projection/p/g1") == Manifest(lake, Tables()).noted("projection/p/g1")
    assert len(manifest.history_of("projection/p/g1")) == 3
    other.project(Projected(epoch=Epoch(4), name="projection/p/g1", tables={}))
    manifest.forget_notes({"projection/q/g1"})
    assert manifest.noted("projection/p/g1") == 4, "another generation may have been live between"
