"""The one commit that makes another generation the table, and the one that takes it back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.errors import LeaseLost
from kernel.positions import CLOSED, DeltaVersion, Epoch
from lake.layout import Lake
from lake.table_settings import TABLE_SETTINGS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard, reached
from replay.generations import (
    Cursor,
    build_app,
    generation_name,
    live_app,
    publish,
    published_version,
    put_back,
    version_before,
)

NAME = "report"
OLD, NEW = live_app(NAME, 1), live_app(NAME, 2)


class Place:
    """A stable table of generation 1, and generation 2 built beneath it."""

    def __init__(self, folder: Path, *, same_columns: bool = False, local: bool = True) -> None:
        self.lake = Lake.at(folder)
        self.stable = self.lake.path(f"projection/{NAME}")
        self.built = self.lake.path(generation_name(NAME, 2))
        self.live = ArrowWriter(Tables())
        old = rows("old", 3) if local else rows("old", 3).drop_columns(["plain"])
        self.live.append(self.stable, old, Guard(OLD, Epoch(5)))
        built = rows("new", 4)
        if not same_columns:
            built = built.append_column("more", pa.array([1.5, 2.5, 3.5, 4.5]))
        guard = Guard(build_app(NAME, 2), Epoch(6))
        ArrowWriter(Tables()).overwrite(self.built, built, guard)

    def swap(self, stable: DeltaTable | None = None) -> None:
        publish(
            stable or DeltaTable(self.stable),
            DeltaTable(self.built),
            folder="_gen/2",
            old=OLD,
            new=Cursor(app_id=NEW, epoch=Epoch(6)),
            generation=2,
        )

    def back(self, stable: DeltaTable | None = None) -> None:
        version = DeltaVersion(published_version(DeltaTable(self.stable), 2) - 1)
        put_back(
            stable or DeltaTable(self.stable),
            version,
            old=Cursor(app_id=OLD, epoch=Epoch(5)),
            new=NEW,
            generation=1,
        )

    def words(self) -> list[str]:
        return sorted(DeltaTable(self.stable).to_pyarrow_table()["word"].to_pylist())

    def cursors(self) -> tuple[int | None, int | None]:
        table = DeltaTable(self.stable)
        return table.transaction_version(OLD), table.transaction_version(NEW)


def rows(word: str, count: int) -> pa.Table:
    at = datetime(2013, 1, 1, 5, 0, 0, 123456, tzinfo=UTC)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "word": [word] * count,
            "at": pa.array([at] * count, pa.timestamp("us", tz="UTC")),
            "plain": pa.array([at.replace(tzinfo=None)] * count, pa.timestamp("us")),
            "day": [date(2013, 1, 1)] * count,
            "price": pa.array([Decimal("1.25")] * count, pa.decimal128(10, 2)),
            "ratio": pa.array([float("nan"), *[0.1] * (count - 1)], pa.float64()),
            "flag": [True] * count,
            "bytes": [b"\x00\xff"] * count,
            "list": [[1, 2]] * count,
            "both": [{"a": 1, "b": None}] * count,
        }
    )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "a lake")


def test_a_swap_replaces_rows_columns_and_cursors_in_one_commit(place: Place) -> None:
    before = DeltaTable(place.stable).version()
    place.swap()
    table = DeltaTable(place.stable)
    assert table.version() == before + 1
    assert place.words() == ["new"] * 4
    assert "more" in table.to_pyarrow_table().schema.names
    assert place.cursors() == (CLOSED, 6)
    assert dict(table.metadata().configuration) == dict(TABLE_SETTINGS)
    assert published_version(table, 2) == before + 1


def test_a_generation_may_be_the_first_with_times_without_a_zone(tmp_path: Path) -> None:
    """Delta has a feature of its own for them, without which it refuses the swap for ever."""
    place = Place(tmp_path / "lake", local=False)
    place.swap()
    assert place.words() == ["new"] * 4
    assert "plain" in DeltaTable(place.stable).to_pyarrow_table().schema.names
    place.back()
    assert place.words() == ["old"] * 3
    place.live.append(place.stable, rows("old", 1), Guard(OLD, Epoch(7)))


def test_a_swap_that_adds_a_feature_sees_a_commit_of_the_live_writer(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path / "lake", local=False)
    stable = DeltaTable(place.stable)
    place.live.append(place.stable, rows("old", 1).drop_columns(["plain"]), Guard(OLD, Epoch(6)))
    with pytest.raises(LeaseLost):
        place.swap(stable)
    assert place.words() == ["old"] * 4
    place.swap()
    assert place.words() == ["new"] * 4


def test_statistics_are_the_ones_of_the_built_files(place: Place) -> None:
    place.swap()
    wanted = pa.table(DeltaTable(place.built).get_add_actions(flatten=True)).to_pylist()
    found = pa.table(DeltaTable(place.stable).get_add_actions(flatten=True)).to_pylist()
    for row in wanted:
        row["path"] = f"_gen/2/{row['path']}"
    kept = [{name: value for name, value in row.items() if value is not None} for row in found]
    assert kept == [{n: v for n, v in row.items() if v is not None} for row in wanted]
    assert kept[0]["max.id"] == 3


def test_a_rollback_brings_back_rows_columns_and_cursors(place: Place) -> None:
    place.swap()
    place.back()
    assert place.words() == ["old"] * 3
    assert "more" not in DeltaTable(place.stable).to_pyarrow_table().schema.names
    assert place.cursors() == (5, CLOSED)


def test_a_closed_writer_writes_nothing_and_an_open_one_goes_on(place: Place) -> None:
    place.swap()
    place.live.append(place.stable, rows("old", 1), Guard(OLD, Epoch(7)))
    place.live.append(place.stable, rows("new", 1), Guard(NEW, Epoch(7)))
    assert place.words() == ["new"] * 5
    place.back()
    place.live.append(place.stable, rows("new", 1), Guard(NEW, Epoch(8)))
    place.live.append(place.stable, rows("old", 1), Guard(OLD, Epoch(8)))
    assert place.words() == ["old"] * 4
    assert reached(DeltaTable(place.stable), Guard(OLD, Epoch(8)))


def append_live(place: Place) -> None:
    place.live.append(place.stable, rows("old", 1), Guard(OLD, Epoch(6)))


def merge_live(place: Place) -> None:
    changed = rows("old", 2).append_column("__op", pa.array(["upsert", "delete"]))
    place.live.merge(place.stable, changed, Guard(OLD, Epoch(6)), keys=["id"])


def compact(place: Place) -> None:
    DeltaTable(place.stable).optimize.compact()


def compact_live(place: Place) -> None:
    append_live(place)
    compact(place)


@pytest.mark.parametrize("commit", [append_live, merge_live, compact_live])
def test_a_live_commit_in_between_makes_the_swap_fail_whole(
    place: Place, commit: Callable[[Place], None]
) -> None:
    stale = DeltaTable(place.stable)
    commit(place)
    before = place.words()
    with pytest.raises(LeaseLost):
        place.swap(stale)
    assert place.words() == before
    assert place.cursors() == (6, None)


def test_compaction_alone_in_between_makes_the_swap_fail_whole(place: Place) -> None:
    append_live(place)
    stale = DeltaTable(place.stable)
    compact(place)
    with pytest.raises(LeaseLost):
        place.swap(stale)
    assert place.words() == ["old"] * 4


def test_a_live_commit_in_between_makes_the_rollback_fail_whole(place: Place) -> None:
    place.swap()
    stale = DeltaTable(place.stable)
    place.live.append(place.stable, rows("new", 1), Guard(NEW, Epoch(7)))
    with pytest.raises(LeaseLost):
        place.back(stale)
    assert place.words() == ["new"] * 5
    place.back()
    assert place.words() == ["old"] * 3


@pytest.mark.parametrize("same_columns", [True, False])
def test_the_live_writers_own_commit_fails_when_the_swap_was_first(
    tmp_path: Path, same_columns: bool
) -> None:
    place = Place(tmp_path, same_columns=same_columns)

    class Swapping(Tables):
        def ensure(self, path: str, schema: pa.Schema, **more: object) -> DeltaTable:
            table = super().ensure(path, schema)
            place.swap()
            return table

    with pytest.raises(LeaseLost):
        ArrowWriter(Swapping()).append(place.stable, rows("old", 1), Guard(OLD, Epoch(6)))
    assert place.words() == ["new"] * 4


def test_p10_readers_see_one_generation_or_the_other_never_a_mixture(tmp_path: Path) -> None:
    # Polars does not find files beneath a folder with a blank in its name.
    place = Place(tmp_path / "lake")
    wrong: list[object] = []
    reads = {"deltalake": 0, "polars": 0, "duckdb": 0}
    over = threading.Event()
    whole = (["old"] * 3, ["new"] * 4)

    def by_polars() -> list[str]:
        return sorted(pl.scan_delta(place.stable).select("word").collect()["word"].to_list())

    def by_duckdb() -> list[str]:
        dataset = DeltaTable(place.stable).to_pyarrow_dataset()
        with duckdb.connect() as connection:
            connection.register("report", dataset)
            found = connection.execute("SELECT word FROM report ORDER BY word").fetchall()
        return [word for (word,) in found]

    def read(engine: str, words: Callable[[], list[str]]) -> None:
        while not over.is_set():
            try:
                found: object = words()
            except Exception as error:
                found = error
            reads[engine] += 1
            if found not in whole:
                wrong.append((engine, found))

    readers = [
        threading.Thread(target=read, args=pair)
        for pair in (("deltalake", place.words), ("polars", by_polars), ("duckdb", by_duckdb))
    ]
    for reader in readers:
        reader.start()
    turns = 0
    while turns < 5 or min(reads.values()) < 5:
        place.swap()
        place.back()
        turns += 1
    over.set()
    for reader in readers:
        reader.join()
    assert not wrong
    assert min(reads.values()) >= 5


def test_the_version_before_an_epoch_is_found_among_many(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    writer = ArrowWriter(Tables())
    versions = {}
    for epoch in range(1, 40, 3):
        versions[epoch] = writer.append(path, pa.table({"id": [epoch]}), Guard("t", Epoch(epoch)))
    DeltaTable(path).optimize.compact()
    for epoch in range(1, 37):
        wanted = max(e for e in versions if e <= epoch)
        assert version_before(path, "t", Epoch(epoch)) == versions[wanted], epoch
    assert version_before(path, "t", Epoch(37)) == DeltaTable(path).version()
    assert DeltaTable(path, version=version_before(path, "t", Epoch(0))).count() == 0


def test_a_version_that_is_kept_is_found_though_older_ones_are_not(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    writer = ArrowWriter(Tables())
    for epoch in range(1, 41):
        rows = pa.table({"id": [epoch]})
        version = writer.overwrite(path, rows, Guard("t", Epoch(epoch)))
        if epoch == 20:
            DeltaTable(path).create_checkpoint()
            forget_before(path, version)
    assert version_before(path, "t", Epoch(22)) == version - 18
    assert version_before(path, "t", Epoch(20)) == version - 20
    assert version_before(path, "t", Epoch(19)) is None
    DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False)
    assert version_before(path, "t", Epoch(22)) is None, "its file was removed"
    assert version_before(path, "t", Epoch(40)) == DeltaTable(path).version()


def forget_before(path: str, version: int) -> None:
    """Remove a table's log up to a version, as cleaning it up does."""
    for entry in Path(path, "_delta_log").glob("*.json"):
        if int(entry.stem) < version:
            entry.unlink()
