"""How many epochs one step of derived tables takes in."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel.positions import Epoch
from lake.layout import Lake
from projections.run.step_budget import MAX_ROWS_PER_STEP, within_budget
from tests.support.lake.handmade import HandMade

HALF = MAX_ROWS_PER_STEP // 2


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        pytest.param([HALF, HALF, 1], 2, id="as many as fit"),
        pytest.param([HALF + 1, HALF, 1], 1, id="none that would be too much with those before"),
        pytest.param([5 * HALF, 1], 1, id="one at least, however large"),
        pytest.param([1, 1, 1], 3, id="all there are"),
    ],
)
def test_a_step_takes_epochs_that_fit_together(tmp_path: Path, rows: list[int], first: int) -> None:
    handmade = HandMade(Lake.at(str(tmp_path)))
    for each in rows:
        handmade.epoch(counts={"changes": each})
    manifest = handmade.manifest
    last = manifest.last()
    assert last is not None
    assert within_budget(manifest, Epoch(0), last).epoch == first
