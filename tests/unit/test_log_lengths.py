"""A table that is committed to all the time keeps a shorter log, and is vacuumed in time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from kernel.positions import Epoch
from lake import log_lengths
from lake.layout import Lake
from lake.log_lengths import keeping, kept_for, shorten
from lake.table_settings import REMOVED, REMOVED_KEPT, TABLE_SETTINGS
from lake.tables import TableAt, Tables
from lake.upkeep.compaction import VACUUM_EVERY, vacuum
from lake.writer import OP, UPSERT, ArrowWriter, Guard
from pipeline.commit.manifest import Manifest
from pipeline.current.merging import MergeKept
from tests.unit.test_manifest import bound

WEEK = timedelta(days=7)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten commits are many, and every third version is looked at."""
    monkeypatch.setattr(log_lengths, "_LOOK_EVERY", 3)
    monkeypatch.setattr(shorten, "__defaults__", (10,))


def fill(lake: Lake, name: str, commits: int) -> DeltaTable:
    writer, path = ArrowWriter(Tables()), lake.path(name)
    first = (DeltaTable(path).transaction_version(name) or 0) if Path(path).exists() else 0
    for number in range(first + 1, first + commits + 1):
        writer.append(path, pa.table({"n": [number]}), Guard(name, Epoch(number)))
    return DeltaTable(path)


def test_a_log_is_shortened_step_by_step_while_it_has_too_many_commits(lake: Lake) -> None:
    table = fill(lake, "log/changes/x", 9)
    assert table.metadata().configuration.items() >= TABLE_SETTINGS.items()
    seen = [WEEK]
    for _ in range(30):
        table = fill(lake, "log/changes/x", 1)
        if (now := kept_for(table, WEEK)) != seen[-1]:
            seen.append(now)
    assert seen == [WEEK, *(timedelta(minutes=minutes) for minutes in (1440, 240, 60, 15))]
    assert table.metadata().configuration.items() >= keeping(15).items()
    rows = Tables().read(lake.path("log/changes/x"))
    assert rows is not None
    assert rows.num_rows == 39


def test_a_log_that_was_cleaned_up_since_stays_as_long_as_it_is(lake: Lake) -> None:
    table = fill(lake, "log/changes/x", 13)
    assert kept_for(table, WEEK) == timedelta(hours=24)
    table.create_checkpoint()
    for number in range(table.version()):
        (Path(lake.path("log/changes/x")) / "_delta_log" / f"{number:020}.json").unlink()
    assert kept_for(fill(lake, "log/changes/x", 8), WEEK) == timedelta(hours=24)
    assert kept_for(fill(lake, "log/changes/x", 8), WEEK) < timedelta(hours=24)


def test_every_kind_of_write_looks_at_the_log(lake: Lake) -> None:
    rows = pa.table({"n": [1]})
    images = rows.append_column(OP, pa.array([UPSERT]))
    for kind in ("append", "overwrite", "merge", "kept"):
        name = f"current/{kind}"
        path, writer, kept = lake.path(name), ArrowWriter(Tables()), MergeKept()
        for number in range(1, 20):
            guard = Guard(name, Epoch(number))
            if kind == "merge":
                writer.merge(path, images, guard, keys=["n"])
            elif kind == "kept":
                kept(path, images, guard, ["n"])
            else:
                getattr(writer, kind)(path, rows, guard)
        assert kept_for(DeltaTable(path), WEEK) < WEEK, kind
        assert DeltaTable(path).transaction_version(name) == 19


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("log/events/x", timedelta(minutes=15)),
        ("current/_tail/x", timedelta(minutes=15)),
        ("current/x", timedelta(hours=1)),
        ("typed/x", WEEK),
        ("projection/log/x", WEEK),
        ("history/current/x", WEEK),
    ],
)
def test_how_short_a_log_becomes_is_of_the_kind_of_table(
    lake: Lake, name: str, least: timedelta
) -> None:
    assert kept_for(fill(lake, name, 45), WEEK) == least


def test_somebody_in_between_puts_it_off(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: object, properties: dict[str, str]) -> None:
        raise CommitFailedError("the metadata changed")

    table = fill(lake, "log/changes/x", 8)
    monkeypatch.setattr(type(table.alter), "set_table_properties", fails)
    table = fill(lake, "log/changes/x", 12)
    assert kept_for(table, WEEK) == WEEK
    assert table.transaction_version("log/changes/x") == 20


def test_files_of_a_busy_table_are_vacuumed_before_its_log_forgets_them(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = {}

    def noted(self: DeltaTable, *, retention_hours: int, **options: object) -> list[str]:
        hours[Path(self.table_uri).name] = retention_hours
        return []

    at = {}
    for name, settings in {"calm": {}, "busy": keeping(240), "hectic": keeping(15)}.items():
        Tables().ensure(lake.path(name), pa.schema([("n", pa.int64())]), settings=settings)
        at[name] = TableAt(version=0, as_of_epoch=0)
    monkeypatch.setattr(DeltaTable, "vacuum", noted)
    vacuum(lake, Tables(), at, retention=WEEK)
    assert hours == {"calm": 168, "busy": 4, "hectic": 1}
    vacuum(lake, Tables(), at, retention=timedelta(days=30))
    assert hours["calm"] == 168, "no log has older versions, or knows files that were removed then"
    vacuum(lake, Tables(), at, retention=timedelta(0))
    assert hours == {"calm": 0, "busy": 0, "hectic": 0}


def test_the_manifest_keeps_a_short_log_from_the_first_epoch_on(lake: Lake) -> None:
    Manifest(lake, Tables()).bind(bound(1, 5))
    assert kept_for(DeltaTable(lake.epochs), WEEK) == timedelta(minutes=5)


@pytest.mark.parametrize("folder", ["with blank", "bär"])
def test_a_log_is_shortened_wherever_it_lies(folder: str, tmp_path: Path) -> None:
    table = fill(Lake.at(tmp_path / folder), "log/changes/x", 13)
    assert kept_for(table, WEEK) == timedelta(hours=24)


def test_a_log_knows_removed_files_until_they_were_vacuumed(lake: Lake) -> None:
    """A checkpoint forgets them: what no vacuum has seen until then would stay for ever."""
    assert REMOVED_KEPT - VACUUM_EVERY > WEEK
    path = lake.path("typed/x")
    rows = pa.table({"n": [1]})
    write_deltalake(path, rows, configuration={"delta.logRetentionDuration": "interval 7 days"})
    table = DeltaTable(path)
    while not table.version() or table.version() % log_lengths._LOOK_EVERY:
        write_deltalake(table, rows, mode="append")
    assert shorten("typed/x", table)
    assert table.metadata().configuration[REMOVED] == TABLE_SETTINGS[REMOVED]
    assert not shorten("typed/x", table)
