"""Old files of tables that are rewritten all the time have a bound in bytes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from kernel.positions import Epoch
from lake.layers import tail_name
from lake.layout import Lake
from lake.log_lengths import keeping
from lake.tables import TableAt, Tables
from lake.upkeep import compaction
from lake.upkeep.compaction import Upkeep, vacuum
from lake.upkeep.old_versions import trim
from lake.writer import ArrowWriter, Guard
from tests.support.services.waiting import until

NOW = 1_000_000.0
NEVER = timedelta(0)


def versions(lake: Lake, name: str, ages: Sequence[float]) -> int:
    """Write one version of one row per age (in seconds); return the bytes of a file."""
    path, writer = lake.path(name), ArrowWriter(Tables())
    for number, age in enumerate(ages, start=1):
        known = {*Path(path).rglob("*")}
        writer.overwrite(path, pa.table({"n": [number]}), Guard(name, Epoch(number)))
        for file in {*Path(path).rglob("*")} - known:
            # A file is written before its commit.
            moment = NOW - age - (0.5 if file.suffix == ".parquet" else 0)
            os.utime(file, (moment, moment))
    return max(file.stat().st_size for file in Path(path).glob("*.parquet"))


def readable(lake: Lake, name: str) -> list[int]:
    """Return the rows of all versions whose files are there."""
    found = []
    for version in range(1, DeltaTable(lake.path(name)).version() + 1):
        try:
            rows = Tables().read(lake.path(name), version=version)
        except FileNotFoundError:
            continue
        assert rows is not None
        found += rows["n"].to_pylist()
    return found


def newest(lake: Lake, *names: str) -> dict[str, int]:
    return {lake.path(name): DeltaTable(lake.path(name)).version() for name in names}


def test_the_oldest_files_go_first_of_all_tables_together(lake: Lake) -> None:
    size = versions(lake, "current/a", [90, 70, 50, 30, 10])
    versions(lake, "current/b", [80, 60, 40, 20, 5])
    tables = newest(lake, "current/a", "current/b")
    assert trim(tables, most_bytes=8 * size, kept_for=NEVER, now=NOW) == 0
    # Old are four of each; three of the eight fit.
    assert trim(tables, most_bytes=3 * size, kept_for=NEVER, now=NOW) == 5
    assert (readable(lake, "current/a"), readable(lake, "current/b")) == ([4, 5], [3, 4, 5])
    assert trim(tables, most_bytes=3 * size, kept_for=NEVER, now=NOW) == 0
    assert trim(tables, most_bytes=0, kept_for=NEVER, now=NOW) == 3
    assert (readable(lake, "current/a"), readable(lake, "current/b")) == ([5], [5])


def test_what_the_newest_epoch_names_stays_and_all_that_came_after_it(lake: Lake) -> None:
    versions(lake, "current/a", [900, 800, 700, 650, 100])
    assert trim({lake.path("current/a"): 3}, most_bytes=0, now=NOW) == 2
    assert readable(lake, "current/a") == [3, 4, 5]


def test_what_was_the_newest_ten_minutes_ago_stays(lake: Lake) -> None:
    """Somebody may have opened it a moment before the next version came."""
    versions(lake, "current/a", [3600, 1800, 1])
    versions(lake, "current/b", [500, 400, 1])
    assert trim(newest(lake, "current/a", "current/b"), most_bytes=0, now=NOW) == 1
    assert (readable(lake, "current/a"), readable(lake, "current/b")) == ([2, 3], [1, 2, 3])


def test_files_of_an_append_are_kept_with_the_versions_that_have_them(lake: Lake) -> None:
    versions(lake, "current/a", [90, 80])
    writer, path = ArrowWriter(Tables()), lake.path("current/a")
    writer.append(path, pa.table({"n": [7]}), Guard("current/a", Epoch(3)))
    assert trim(newest(lake, "current/a"), most_bytes=0, kept_for=NEVER, now=NOW) == 1
    table = Tables().read(path)
    assert table is not None
    assert sorted(table["n"].to_pylist()) == [2, 7]


@pytest.mark.parametrize(("settings", "days"), [({}, 8), (keeping(240), 2)])
def test_what_a_writer_left_goes_when_it_is_old(
    lake: Lake, settings: dict[str, str], days: int
) -> None:
    """Whoever writes it may be slower than others who commit meanwhile."""
    versions(lake, "current/a", [900, 800, 700])
    if settings:
        DeltaTable(lake.path("current/a")).alter.set_table_properties(settings)
    ages = {"amid.parquet": 850, "slow.parquet": (days - 1) * 86_400}
    left = {"left.parquet": days * 86_400 + 1, "killed.parquet#1": days * 86_400 + 1}
    for name, age in (ages | left).items():
        file = Path(lake.path("current/a")) / name
        file.write_bytes(b"x" * 5000)
        os.utime(file, (NOW - age, NOW - age))
    assert trim(newest(lake, "current/a"), most_bytes=10**9, now=NOW) == 2
    names = {file.name for file in Path(lake.path("current/a")).iterdir()}
    assert names & {*ages, *left} == {*ages}
    rows = Tables().read(lake.path("current/a"))
    assert rows is not None
    assert rows["n"].to_pylist() == [3]


@pytest.mark.parametrize("name", ["log/x", "typed/x", "history/x", "projection/r/_gen/2"])
def test_what_a_killed_writer_left_goes_from_tables_that_are_not_trimmed(
    lake: Lake, name: str
) -> None:
    path, writer = Path(lake.path(name)), ArrowWriter(Tables())
    for number in (1, 2, 3):
        rows = pa.table({"table": ["it's a"] * 2, "n": [number, -number]})
        guard = Guard(name, Epoch(number))
        writer.append(str(path), rows, guard, partition_by=["table"])
    DeltaTable(path).optimize.compact()
    compacted = DeltaTable(path).version()
    day = 86_400
    for file in path.rglob("*.parquet"):
        os.utime(file, (time.time() - 30 * day,) * 2)
    own = {*path.rglob("*.parquet")}
    (folder,) = {file.parent for file in own}
    left = [path / "a.parquet", folder / "b.parquet", folder / "c.parquet#1"]
    beneath = path / "_gen" / "3" / "d.parquet"
    beneath.parent.mkdir(parents=True)
    kept = [folder / "young.parquet", path / "_other" / "e.parquet", beneath]
    kept[1].parent.mkdir()
    for file, days in {**dict.fromkeys([*left, *kept[1:]], 9), kept[0]: 7}.items():
        file.write_bytes(b"x" * 5000)
        os.utime(file, (time.time() - days * day,) * 2)

    upkeep = Upkeep(lake, retention=timedelta(days=7), derived=lambda: [name])
    upkeep._at = {name: TableAt(version=compacted, as_of_epoch=3)}
    upkeep._vacuum()
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in kept)
    assert {*path.rglob("*.parquet")} == {*own, *kept}, "also those of older versions"
    assert upkeep.troubles == {}


def test_names_are_found_as_the_log_writes_them(tmp_path: Path) -> None:
    lake = Lake.at(tmp_path / "a lake")
    versions(lake, "current/größe x", [900, 800, 700])
    assert trim(newest(lake, "current/größe x"), most_bytes=0, now=NOW) == 2
    assert readable(lake, "current/größe x") == [3]


def test_a_table_that_cannot_be_read_is_left_alone(
    lake: Lake, caplog: pytest.LogCaptureFixture
) -> None:
    versions(lake, "current/a", [90, 80])
    (odd := Path(lake.path("current/odd"))).mkdir()
    (odd / "a.parquet").write_bytes(b"x")
    os.utime(odd / "a.parquet", (1, 1))
    tables = newest(lake, "current/a") | {str(odd): 0, lake.path("current/absent"): 0}
    with caplog.at_level(logging.WARNING):
        assert trim(tables, most_bytes=0, kept_for=NEVER, now=NOW) == 1
    assert (odd / "a.parquet").exists()
    assert "old files of" in caplog.text


def test_upkeep_trims_current_tables_and_no_others(lake: Lake) -> None:
    large, tail, log_name = "current/large", tail_name("current/large"), "log/changes/shop"
    for name in (large, tail, log_name):
        versions(lake, name, [90, 80, 70])
    upkeep = Upkeep(lake, retention=timedelta(days=7), current_bytes=0)
    assert upkeep.trim() == 0
    upkeep._at = {n: TableAt(version=3, as_of_epoch=3) for n in (large, tail, log_name)}
    assert upkeep.trim() == 2
    assert [readable(lake, n) for n in (large, tail, log_name)] == [[3], [1, 2, 3], [1, 2, 3]]
    removed = vacuum(lake, Tables(), upkeep._at, retention=NEVER)
    assert removed[tail] >= 2
    assert {*readable(lake, large)} == {3}, "and the versions of the vacuum itself"
    unbound = Upkeep(lake, retention=timedelta(days=7))
    unbound._at = upkeep._at
    assert unbound.trim() == 0


def test_a_table_that_cannot_be_opened_stops_no_other_and_is_tried_again_soon(lake: Lake) -> None:
    versions(lake, "current/a", [90, 80])
    torn = Path(lake.path("typed/torn")) / "_delta_log" / f"{0:020}.json"
    torn.parent.mkdir(parents=True)
    torn.write_text("{torn")
    upkeep = Upkeep(lake, retention=NEVER, derived=lambda: ["typed/torn"])
    upkeep._at = {"current/a": TableAt(version=2, as_of_epoch=2)}
    every = compaction.VACUUM_EVERY
    assert upkeep.rest_after(upkeep._vacuum, every) == compaction.AGAIN_AFTER_S
    assert list(upkeep.troubles) == ["typed/torn"]
    assert "\n" not in upkeep.troubles["typed/torn"]
    assert readable(lake, "current/a") == [2], "the other one was looked after"
    assert upkeep.rest_after(upkeep._vacuum, every) == 2 * compaction.AGAIN_AFTER_S
    torn.unlink()
    assert upkeep.rest_after(upkeep._vacuum, every) == every.total_seconds()
    assert upkeep.troubles == {}


def test_upkeep_looks_at_once_and_goes_on_after_an_error(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk has ingest wait: nothing else must be waited for, nor stand in the way."""
    monkeypatch.setattr(compaction, "_REST_S", 0.01)
    monkeypatch.setattr(compaction, "TRIM_EVERY", NEVER)
    versions(lake, "current/a", [90, 80])
    asked, real = 0, compaction.trim

    def failing(tables: Mapping[str, int], *, most_bytes: int, **more: object) -> int:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise OSError("the disk is away")
        return real(tables, most_bytes=most_bytes)

    monkeypatch.setattr(compaction, "trim", failing)
    upkeep = Upkeep(lake, retention=timedelta(days=7), current_bytes=0)
    upkeep.committed({"current/a": TableAt(version=2, as_of_epoch=2)})
    try:
        until(lambda: readable(lake, "current/a") == [2], "the old file is gone")
    finally:
        upkeep.close()
    assert "the disk is away" in caplog.text
