"""How old a record of the quiet lane was is read off the lake: its epoch's row says when."""

from __future__ import annotations

import json
import time

import pyarrow as pa
import pytest

from benchmarks.lanes.quiet_lane import NAME, QuietLane
from kernel.positions import Epoch
from lake.layout import Lake, topics_log
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.manifest import rows_of
from pipeline.commit.manifest_rows import COMMITTED


def test_the_lag_of_a_lane_is_from_sending_to_the_epochs_row(lake: Lake) -> None:
    lane, now = QuietLane(lake, "nobody"), time.time()
    assert lane.lag(now, now + 1)["records"] == 0
    lane.sent += [now - 3, now - 2, now - 1]
    values = [json.dumps({"at": at}).encode() for at in lane.sent]
    logged = pa.table({"epoch": pa.array([1, 1, 2]), "value": values})
    writer = ArrowWriter(Tables())
    writer.append(lake.path(topics_log(NAME)), logged, Guard("log", Epoch(1)))
    writer.append(lake.epochs, rows_of({"epoch": 1, "kind": COMMITTED}), Guard("e", Epoch(1)))
    found = lane.lag(now - 4, now)
    assert (found["records"], found["unseen"]) == (3, 1)
    assert found["p50_s"] == pytest.approx(2, abs=0.9)
    assert found["max_s"] == pytest.approx(3, abs=0.9)
    assert lane.lag(now - 1.5, now)["unseen"] == 1
