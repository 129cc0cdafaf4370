"""Whose commit it was: what epochs and installs write is no stranger's, whatever they do."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import (
    Tables,
    cleared_guard,
    columns_guard,
    outlived_guard,
    rewritten_guard,
)
from lake.writer import ArrowWriter, Guard
from pipeline.installs.installation import mend_guard
from pipeline.verification.foreign_commits import stranger

NAME = "current/shop.orders"
ROWS = pa.table({"id": [1]})


def append(lake: Lake, guard: str) -> None:
    ArrowWriter(Tables()).append(lake.path(NAME), ROWS, Guard(guard, Epoch(1)))


@pytest.mark.parametrize(
    "guard",
    [
        NAME,
        *(of(NAME) for of in (columns_guard, cleared_guard, outlived_guard, rewritten_guard)),
        mend_guard("run"),
    ],
)
def test_what_an_epoch_or_an_install_wrote_is_no_strangers(tmp_path: Path, guard: str) -> None:
    lake = Lake.at(tmp_path)
    append(lake, guard)
    assert stranger(lake, Tables(), NAME) is None


@pytest.mark.parametrize("guard", ["somebody", f"{NAME}_too", f"{NAME}2/columns"])
def test_what_another_wrote_is_told(tmp_path: Path, guard: str) -> None:
    lake = Lake.at(tmp_path)
    append(lake, NAME)
    append(lake, guard)
    assert "version 2 of current/shop.orders" in (stranger(lake, Tables(), NAME) or "")
