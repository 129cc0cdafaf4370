"""The changes of a projection's table, version by version, from any place on."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.errors import Incompatible, NotFound
from kernel.positions import DeltaVersion, Epoch
from lake.layout import Lake
from lake.table_commits import commit_at
from lake.upkeep.compaction import compact
from lake.writer import Guard, with_op
from projections.serve import row_changes, row_values
from projections.serve.feed_places import FeedPlace, place_of
from projections.serve.row_values import documents
from projections.serve.table_steps import Changes, TableSteps
from replay.generations import live_app
from tests.support.lake.handmade import HandMade, words
from tests.support.lake.swaps import rollback, swap

NAME = "projection/report"
KEY = ("id",)
Told = tuple[str, Any, str | None]


@pytest.fixture
def made(lake: Lake) -> HandMade:
    handmade = HandMade(lake)
    handmade.deploy("report")
    handmade.run("report", words(*((i, f"a{i}") for i in range(5))), handmade.epoch())
    return handmade


def merge(made: HandMade, rows: pa.Table, op: str = "upsert") -> None:
    app, epoch = live_app("report", 1), made.epoch()
    path = made.lake.path(NAME)
    version = made.writer.merge(path, with_op(rows, op), Guard(app, epoch), keys=["id"])
    made.note(app, {NAME: version}, epoch)


def steps(made: HandMade, *, most_bytes: int = 2**20) -> TableSteps:
    path = made.lake.path(NAME)
    return TableSteps(name=NAME, path=path, table_id="0" * 8, read=documents, most_bytes=most_bytes)


def newest(made: HandMade) -> DeltaVersion:
    return DeltaVersion(DeltaTable(made.lake.path(NAME)).version())


def all_steps(made: HandMade, place: FeedPlace | None = None) -> list[Changes]:
    """Follow to the end, as one who is never interrupted."""
    found: list[Changes] = []
    while some := list(steps(made).after(place, newest(made), KEY)):
        found += some
        place = found[-1].behind
    return found


def told(found: list[Changes]) -> list[Told]:
    return [
        (change.operation, change.key["id"], None if change.new is None else change.new["word"])
        for changes in found
        for change in changes.rows
    ]


def test_each_version_is_a_step_and_what_was_rewritten_as_it_was_is_none(made: HandMade) -> None:
    place = all_steps(made)[-1].behind
    merge(made, words((1, "b1"), (9, "b9")))
    merge(made, words((1, "c1")))
    merge(made, words((2, "a2")))
    compact(made.lake, made.tables, [NAME])
    merge(made, words((9, "")), op="delete")
    found = all_steps(made, place)
    assert told(found) == [
        ("update", 1, "b1"),
        ("insert", 9, "b9"),
        ("update", 1, "c1"),
        ("delete", 9, None),
    ]
    assert [(each.epoch, each.generation) for each in found if each.rows] == [
        (2, 1),
        (3, 1),
        (5, 1),
    ]


def test_a_compaction_is_passed_by_without_a_look_at_its_files(made: HandMade) -> None:
    for letter in "bcd":
        merge(made, words((ord(letter), letter)))
    place = FeedPlace(table_id="0" * 8, version=newest(made))
    DeltaTable(made.lake.path(NAME)).optimize.compact()
    last = commit_at(made.lake.path(NAME), newest(made))
    assert last is not None
    assert not last.changes_rows
    assert [(each.rows, each.behind.version) for each in all_steps(made, place)] == [
        ([], newest(made))
    ]
    merge(made, words((1, "e")))
    found = all_steps(made, place)
    assert told(found) == [("update", 1, "e")]
    # It is compared with what the compaction left, not with what that took up.
    assert found[0].behind.version == newest(made) - 1


def test_whoever_is_interrupted_at_any_place_goes_on_from_there(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_changes, "_BATCH_ROWS", 2)
    monkeypatch.setattr(row_values, "_MOST_ROWS", 2)
    first = all_steps(made)
    assert [len(each.rows) for each in first] == [2, 2, 1, 0]
    merge(made, words(*((i, f"b{i}") for i in range(1, 7))))
    whole = told(first) + told(all_steps(made, first[-1].behind))
    for number, each in enumerate(first):
        rest = all_steps(made, place_of(str(each.behind)))
        assert told(first[: number + 1]) + told(rest) == whole
    second = all_steps(made, first[-1].behind)
    for number, each in enumerate(second):
        rest = all_steps(made, place_of(str(each.behind)))
        assert told(first) + told(second[: number + 1]) + told(rest) == whole


def test_a_swap_and_a_rollback_give_what_differs(made: HandMade) -> None:
    place = all_steps(made)[-1].behind
    made.build("report", words((1, "a1"), (2, "new"), (7, "new")), 1)
    swap(made.site, "report", lambda replay: replay)
    swapped = all_steps(made, place)
    assert told(swapped) == [
        ("delete", 0, None),
        ("update", 2, "new"),
        ("delete", 3, None),
        ("delete", 4, None),
        ("insert", 7, "new"),
    ]
    assert {(each.epoch, each.generation) for each in swapped if each.rows} == {(Epoch(1), 2)}
    rollback(made.site, "report")
    assert told(all_steps(made, swapped[-1].behind)) == [
        ("insert", 0, "a0"),
        ("update", 2, "a2"),
        ("insert", 3, "a3"),
        ("insert", 4, "a4"),
        ("delete", 7, None),
    ]


def test_what_is_not_kept_or_does_not_fit_is_refused_by_name(made: HandMade) -> None:
    place = all_steps(made)[-1].behind
    merge(made, words((1, "b1")))
    with pytest.raises(Incompatible, match="versions 1 and 2 of projection/report cannot be"):
        list(steps(made, most_bytes=1).after(place, newest(made), KEY))
    table = DeltaTable(made.lake.path(NAME))
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(NotFound, match="version 2 of projection/report is not kept any more"):
        list(steps(made).after(place, newest(made), KEY))


def test_versions_of_which_one_has_a_longer_key_are_not_compared(made: HandMade) -> None:
    place = all_steps(made)[-1].behind
    made.run("report", words((1, "a1"), (1, "b1")), made.epoch())
    with pytest.raises(Incompatible, match="cannot be compared: they have other keys"):
        all_steps(made, place)
