"""A fold for which neither memory nor the disk behind it suffice is left to Spark."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import write_deltalake

from kernel.errors import BeyondThisProcess
from kernel.positions import Epoch
from lake.layout import Lake
from lake.ranges import Range
from lake.tables import Tables
from pipeline.history import driver_fold
from pipeline.history.driver_fold import DriverFold
from pipeline.history.fold import HistoryFold
from pipeline.history.shape import HistoryOf
from tests.support.oracles.change_facts import TYPED, Writer, typed

PEOPLE = HistoryOf(name="history/x", typed="typed/x", key=("id",), identity=("id",), by_row=False)


def test_a_fold_that_cannot_go_on_on_disk_is_anothers_and_the_next_one_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, tables = Lake(str(tmp_path / "lake")), Tables()
    facts = Writer(chance=random.Random(1)).snapshot({n: f"name {n}" for n in range(20_000)})
    write_deltalake(lake.path(PEOPLE.typed), typed(facts, 1))
    fold = HistoryFold(
        history=PEOPLE,
        incoming=TYPED,
        within=Range(column="_epoch", lower=1, upper=2),
        epoch=Epoch(1),
        anew=True,
    )
    folds = DriverFold(lake, tables, most_bytes=2**30)
    no_folder = tmp_path / "file"
    no_folder.touch()
    with monkeypatch.context() as small:
        small.setattr(driver_fold, "MEMORY_BYTES", 4 * 2**20)
        small.setattr("tempfile.gettempdir", lambda: str(no_folder))
        with pytest.raises(BeyondThisProcess, match="memory"):
            folds.changes(fold)
    assert folds.changes(fold).num_rows == 20_000
