"""Rows of projections by key and page, at epochs, and across swaps, rollbacks and lost versions."""

from __future__ import annotations

import base64
import json
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.errors import InvalidRequest, NotFound
from kernel.positions import Epoch
from lake.layout import Lake
from lake.writer import Guard, with_op
from projections.run.catalog import DROPPED
from projections.serve import lookups as served_rows
from projections.serve import newest_runs
from projections.serve.keyed_rows import HIDDEN, ScannedRows, held
from projections.serve.lookups import Lookups
from projections.serve.row_values import documents, key_of
from replay.generations import live_app
from tests.support.lake.handmade import SQL, HandMade, words
from tests.support.lake.swaps import rollback, swap
from tests.support.services.waiting import until

MEMORY = 2**20


@pytest.fixture
def made(any_lake: Lake) -> HandMade:
    """`report` at epochs 1 to 3, each with a row more."""
    handmade = HandMade(any_lake)
    handmade.deploy("report")
    for n in (1, 2, 3):
        epoch = handmade.epoch(head=n * 10)
        handmade.run("report", words(*((i, f"w{i}@{n}") for i in range(1, n + 1)), epoch=n), epoch)
    return handmade


def merge(made: HandMade, epoch: int, rows: pa.Table, op: str = "upsert") -> None:
    """Commit a run as the projector does: by key."""
    app = live_app("report", 1)
    path = made.lake.path("projection/report")
    version = made.writer.merge(path, with_op(rows, op), Guard(app, Epoch(epoch)), keys=["id"])
    made.note(app, {"projection/report": version}, epoch)


def shown(lookups: Lookups, *keys: str) -> list[dict[str, object]]:
    served = lookups.look().projections["report"]
    rows = lookups.rows(served)
    columns = [rows.schema.field(name) for name in rows.key]
    return documents(rows.find([key_of(key, columns) for key in keys]))


def test_a_table_that_is_watched_is_opened_anew_behind_many_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake goes through all commits that a handle has seen behind each further one."""
    monkeypatch.setattr(newest_runs, "RENEWED_AFTER", 2)
    path = str(tmp_path / "table")
    watched, seen = newest_runs.WatchedTable(path), list[DeltaTable]()
    for number in range(6):
        write_deltalake(path, words((number, "a")), mode="append")
        assert watched.moved()
        assert not watched.moved()
        assert watched.table is not None
        assert watched.table.version() == number
        seen.append(watched.table)
    assert [one is other for one, other in pairwise(seen)] == [True, True, False, True, True]


@pytest.mark.parametrize("memory", [MEMORY, 0])
def test_rows_are_found_by_key_whether_they_are_held_or_scanned(
    made: HandMade, memory: int
) -> None:
    lookups = Lookups(made.lake, most_bytes=memory)
    assert shown(lookups, "2") == [{"id": 2, "word": "w2@3"}]
    assert shown(lookups, "9") == []
    assert {row["id"] for row in shown(lookups, "3", '{"id": 1}')} == {1, 3}
    held = lookups.look().rows
    assert ("report" in held) == (memory > 0)
    assert isinstance(lookups.rows(lookups.look().projections["report"]), ScannedRows) == (
        memory == 0
    )


@pytest.mark.parametrize("memory", [MEMORY, 0])
def test_pages_go_through_all_rows_in_the_order_of_keys(made: HandMade, memory: int) -> None:
    made.epoch(head=40)
    merge(made, 4, words(*((i, f"w{i}") for i in range(40, 3, -1)), epoch=4))
    lookups = Lookups(made.lake, most_bytes=memory)
    rows = lookups.rows(lookups.look().projections["report"])
    after, found = None, []
    while True:
        page = rows.page(after, 7)
        found += page["id"].to_pylist()
        if page.num_rows < 7:
            break
        after = key_of(json.dumps({"id": found[-1]}), [rows.schema.field("id")])
    assert found == list(range(1, 41))
    assert not HIDDEN & set(rows.schema.names)


def test_a_new_version_is_seen_with_the_next_look_and_an_old_one_by_its_epoch(
    made: HandMade,
) -> None:
    lookups = Lookups(made.lake, most_bytes=MEMORY)
    assert shown(lookups, "1") == [{"id": 1, "word": "w1@3"}]
    made.epoch(head=40)
    merge(made, 4, words((1, "new"), epoch=4))
    served = lookups.look().projections["report"]
    assert (served.epoch, shown(lookups, "1")) == (4, [{"id": 1, "word": "new"}])
    _, rows = lookups.rows_at(served, Epoch(2))
    assert documents(rows.page(None, 9)) == [
        {"id": 1, "word": "w1@2"},
        {"id": 2, "word": "w2@2"},
    ]
    with pytest.raises(NotFound, match="epoch 5 is not committed"):
        lookups.rows_at(served, Epoch(5))


def test_what_is_committed_and_not_noted_yet_is_not_seen(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=MEMORY)
    shown(lookups, "1")
    made.epoch(head=40)
    path = made.lake.path("projection/report")
    guard = Guard(live_app("report", 1), Epoch(4))
    made.writer.merge(path, with_op(words((1, "new"), epoch=4), "upsert"), guard, keys=["id"])
    for each in (lookups, Lookups(made.lake, most_bytes=MEMORY)):
        assert shown(each, "1") == [{"id": 1, "word": "w1@3"}]


def test_a_position_is_applied_with_the_epoch_that_took_it_in(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=MEMORY)
    served = lookups.look().projections["report"]
    assert lookups.applied(served, "store", 30)
    assert not lookups.applied(served, "store", 31)
    assert not lookups.applied(served, "another", 1)
    made.epoch(head=40)
    assert not lookups.applied(lookups.look().projections["report"], "store", 31)
    # A run without new input commits nothing, and notes the epoch.
    made.note(live_app("report", 1), {"projection/report": int(served.version or 0)}, 4)
    assert lookups.applied(lookups.look().projections["report"], "store", 40)


def test_a_swap_and_its_rollback_are_followed(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=MEMORY)
    assert shown(lookups, "1") == [{"id": 1, "word": "w1@3"}]
    made.build("report", words((1, "second"), epoch=3), 3)
    swap(made.site, "report", lambda replay: replay)
    assert shown(lookups, "1", "2") == [{"id": 1, "word": "second"}]
    assert lookups.look().projections["report"].generation == 2
    rollback(made.site, "report")
    assert shown(lookups, "1") == [{"id": 1, "word": "w1@3"}]
    assert lookups.look().projections["report"].generation == 1


def test_rows_of_before_are_at_hand_while_those_of_a_swap_are_read(
    made: HandMade, monkeypatch: pytest.MonkeyPatch
) -> None:
    lookups, may_read = Lookups(made.lake, most_bytes=MEMORY, wait_s=0.01), threading.Event()
    assert shown(lookups, "1") == [{"id": 1, "word": "w1@3"}]

    def read_when_told(*of: Any) -> Any:
        assert may_read.wait(60)
        return held(*of)

    monkeypatch.setattr(served_rows, "held", read_when_told)
    made.build("report", words((1, "second"), epoch=3), 3)
    swap(made.site, "report", lambda replay: replay)
    try:
        look = lookups.look()
        before, rows = look.before["report"]
        assert (before.generation, rows.page(None, 1)["word"].to_pylist()) == (1, ["w1@3"])
        assert "report" not in look.rows
        # Who asks for the newest does not wait for all of its rows either.
        newest = look.projections["report"]
        assert newest.generation == 2
        assert lookups.rows(newest).page(None, 9)["word"].to_pylist() == ["second"]
    finally:
        may_read.set()
    until(lambda: "report" in lookups.look().rows, "the rows were read")
    look = lookups.look()
    assert not look.before
    assert look.rows["report"].page(None, 9)["word"].to_pylist() == ["second"]


def test_what_is_scanned_is_opened_once_while_nothing_comes(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=0)
    served = lookups.look().projections["report"]
    first = lookups.rows(served)
    assert lookups.rows(served) is first
    # A version that is not noted yet may be one whose files take the place of these.
    made.epoch(head=40)
    made.writer.overwrite(
        made.lake.path("projection/report"), words((1, "w")), Guard(live_app("report", 1), Epoch(4))
    )
    assert lookups.rows(served) is not first


@pytest.mark.parametrize("key", ["word", "code"])
def test_an_epoch_whose_rows_had_another_key_is_refused(made: HandMade, key: str) -> None:
    """Whether that column was there already or not: pages by it would leave rows out."""
    lookups = Lookups(made.lake, most_bytes=MEMORY)
    rows = words((1, "a"), (2, "b"), epoch=3, code=[8, 9])
    made.build("report", rows, 3, key=key, base_text=SQL.format(name="report", key="id"))
    swap(made.site, "report", lambda replay: replay)
    served = lookups.look().projections["report"]
    assert (served.generation, served.key) == (2, (key,))
    assert lookups.rows_at(served, Epoch(3))[1].page(None, 9).num_rows == 2
    with pytest.raises(NotFound, match="at epoch 2 the rows of report had another key") as refused:
        lookups.rows_at(served, Epoch(2))
    assert "penstock query --epoch 2" in refused.value.remedy
    rollback(made.site, "report")
    assert lookups.rows_at(lookups.look().projections["report"], Epoch(2))[1].key == ("id",)


def test_a_version_that_a_vacuum_took_is_refused_with_what_to_do(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=MEMORY)
    served = lookups.look().projections["report"]
    table = DeltaTable(made.lake.path("projection/report"))
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(NotFound, match="not kept any more") as refused:
        lookups.rows_at(served, Epoch(1))[1].page(None, 9)
    assert "lake.retention_days" in refused.value.remedy
    assert shown(lookups, "3") == [{"id": 3, "word": "w3@3"}]


def test_a_dropped_projection_and_one_without_a_run(made: HandMade) -> None:
    lookups = Lookups(made.lake, most_bytes=MEMORY)
    made.deploy("waiting")
    waiting = lookups.look().projections["waiting"]
    assert waiting.epoch is None
    with pytest.raises(NotFound, match="has not taken in any epoch"):
        lookups.rows(waiting)
    shown(lookups, "1")
    made.deployed.set_status("report", DROPPED)
    look = lookups.look()
    assert "report" not in look.projections
    assert "report" not in look.rows


def test_a_lake_that_is_not_there_yet_has_no_projections(tmp_path: Path) -> None:
    assert Lookups(Lake.named(tmp_path / "none"), most_bytes=MEMORY).look().projections == {}


def test_values_are_shown_as_events_show_them() -> None:
    rows = pa.table(
        {
            "d": pa.array([Decimal("12.50")], pa.decimal128(10, 2)),
            "i": pa.array([2**63 - 1], pa.int64()),
            "nan": pa.array([float("nan")]),
            "far": pa.array([2**60], pa.timestamp("us", "UTC")),
            "m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "s": pa.array([{"x": [float("inf")]}]),
        }
    )
    (row,) = documents(rows)
    assert row["d"] == Decimal("12.50")
    assert (row["i"], row["nan"], row["m"]) == (2**63 - 1, "NaN", {"a": 1})
    assert row["s"] == {"x": ["Infinity"]}
    assert row["far"] == "38504-08-17T21:30:06.846976Z"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "JFK", "JFK"),
        (pa.string(), '{"other": 1}', '{"other": 1}'),
        (pa.string(), '{"k": "JFK"}', "JFK"),
        (pa.int64(), "-7", -7),
        (pa.bool_(), "true", True),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(10, 2), '{"k": 1.5}', Decimal("1.50")),
        (pa.date32(), "2013-01-31", date(2013, 1, 31)),
        (
            pa.timestamp("us", "UTC"),
            "2013-01-31T12:00:00Z",
            datetime(2013, 1, 31, 12, tzinfo=UTC),
        ),
        (
            pa.timestamp("us"),
            "2013-01-31T12:00:00",
            datetime(2013, 1, 31, 12, tzinfo=UTC).replace(tzinfo=None),
        ),
        (pa.binary(), base64.b64encode(b"\xff").decode(), b"\xff"),
    ],
)
def test_keys_are_read_as_rows_show_them(kind: pa.DataType, text: str, value: object) -> None:
    assert [each.as_py() for each in key_of(text, [pa.field("k", kind)]).values] == [value]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "1.0"),
        (pa.int64(), "9" * 30),
        (pa.int64(), '{"k": null}'),
        (pa.int64(), '{"k": [1]}'),
        (pa.bool_(), "yes"),
        (pa.decimal128(10, 2), "1.555"),
        (pa.timestamp("us", "UTC"), "2013-01-31T12:00:00"),
        (pa.string(), '{"k": 5}'),
        (pa.binary(), "é"),
    ],
)
def test_a_key_that_the_column_cannot_have_is_refused(kind: pa.DataType, text: str) -> None:
    with pytest.raises(InvalidRequest, match="is no value of k"):
        key_of(text, [pa.field("k", kind)])


def test_a_key_of_several_columns_is_an_object() -> None:
    columns = [pa.field("origin", pa.string()), pa.field("hour", pa.int64())]
    found = key_of('{"hour": 5, "origin": "JFK"}', columns)
    assert [each.as_py() for each in found.values] == ["JFK", 5]
    with pytest.raises(InvalidRequest, match="does not name"):
        key_of("JFK", columns)


@pytest.mark.parametrize("memory", [MEMORY, 0])
def test_all_rows_of_an_answer_are_of_its_epoch_whatever_is_committed_meanwhile(
    made: HandMade, memory: int
) -> None:
    """Merges, a compaction, a swap and a rollback while others read."""
    made.epoch(head=40)
    merge(made, 4, words(*((i, "4") for i in range(20)), epoch=4))
    lookups, ended = Lookups(made.lake, most_bytes=memory), threading.Event()
    seen: list[tuple[int, set[str]]] = []

    def read() -> None:
        while not ended.is_set():
            served = lookups.look().projections["report"]
            try:
                found = documents(lookups.rows(served).page(None, 99))
            except NotFound:
                continue
            seen.append((served.epoch or 0, {str(row["word"]) for row in found}))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        path = made.lake.path("projection/report")
        for epoch in range(5, 11):
            made.epoch(head=epoch * 10)
            merge(made, epoch, words(*((i, str(epoch)) for i in range(20)), epoch=epoch))
            if epoch == 7:
                DeltaTable(path).optimize.compact()
            made.tables.forget(path)
        made.build("report", words((1, "10"), (2, "10"), epoch=10), 10)
        swap(made.site, "report", lambda replay: replay)
        rollback(made.site, "report")
        count = len(seen)
        until(lambda: len(seen) > count + 1, "the end was read")
    finally:
        ended.set()
        reader.join()
    assert [each for each in seen if each[1] != {str(each[0])}] == []
    assert seen[-1] == (10, {"10"})
