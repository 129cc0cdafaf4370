"""Which records wait: those that no outcome has ended, whatever was at their place before."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from kernel.positions import Epoch
from lake.layout import Lake
from lake.outcomes import REFUSED, RELEASED, WAIVED
from lake.table_columns import OUTCOMES, QUARANTINE
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from pipeline.commit.quarantine import open_records
from projections.serve.quarantined import waiting_records

AT = datetime(2020, 2, 2, tzinfo=UTC)


def put(lake: Lake, path: str, schema: pa.Schema, epoch: int, **own: object) -> None:
    row = {"epoch": epoch, "topic": "shop.t", "partition": 0, "source": "shop", "table": "t", **own}
    rows = pa.Table.from_pylist([row], schema=schema)
    ArrowWriter(Tables()).append(path, rows, Guard(path, Epoch(epoch)))


def record(lake: Lake, epoch: int, offset: int) -> None:
    put(lake, lake.quarantine, QUARANTINE, epoch, offset=offset, ingested_at=AT)


def waiting(lake: Lake) -> list[tuple[int, int]]:
    found = open_records(lake, Tables(), [])
    rows = [] if found is None else found.to_pylist()
    places = [(row["epoch"], row["offset"]) for row in rows]
    assert [(row["epoch"], row["offset"]) for row in waiting_records(lake)] == places
    return places


@pytest.mark.parametrize("outcome", [RELEASED, WAIVED])
def test_a_record_of_a_topic_that_was_made_again_is_hidden_by_no_old_outcome(
    tmp_path: Path, outcome: str
) -> None:
    lake = Lake.at(tmp_path)
    record(lake, 3, 7)
    record(lake, 4, 8)
    assert waiting(lake) == [(3, 7), (4, 8)]
    put(lake, lake.outcomes, OUTCOMES, 5, offset=7, outcome=outcome, decided_at=AT)
    assert waiting(lake) == [(4, 8)]
    record(lake, 9, 7)
    assert waiting(lake) == [(9, 7), (4, 8)]
    put(lake, lake.outcomes, OUTCOMES, 10, offset=7, outcome=outcome, decided_at=AT)
    put(lake, lake.outcomes, OUTCOMES, 11, offset=8, outcome=REFUSED, decided_at=AT)
    assert waiting(lake) == [(4, 8)]
