"""Partitions are added to a captured table's topic, and its connector starts again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from kernel.positions import TopicId
from lake.layout import Lake, changes_log
from lake.table_columns import DECODED
from lake.tables import Tables
from pipeline.commit.manifest_rows import Bound, Committed
from tests.support.lake.bulk import ENDS, ROWS, HandLake, HandSource
from tests.support.lake.folding import SOURCE, TABLE, Done

BEGUN = {
    "kind": "snapshot",
    "source": SOURCE,
    "topic": "begun",
    "partition": 0,
    "offset": 0,
    "lsn": 0,
    "counts": '{"rows": 0}',
}
FIRST_TOPIC = TopicId("made once", 1)


def epoch(made: HandLake, *rows: dict[str, Any], partitions: int) -> Committed:
    """Take rows in; the topic has so many partitions now."""
    places = {str(number): made.ingest.next_epoch for number in range(partitions)}
    bound = Bound(
        epoch=made.ingest.next_epoch,
        run_id="t",
        batch_id=0,
        start={ROWS: dict.fromkeys(places, 0), ENDS: {"0": 0}},
        end={ROWS: places, ENDS: {"0": 1}},
        topics={ROWS: FIRST_TOPIC} if made.ingest.last is None else {},
    )
    decoded = pa.Table.from_pylist(list(rows), schema=DECODED)
    return made.ingest.run_epoch(bound, lambda: decoded)


def placed(rows: list[dict[str, Any]], partition: int) -> list[dict[str, Any]]:
    return [row | {"topic": ROWS, "partition": partition} for row in rows]


def logged(lake: Lake) -> list[int]:
    rows = Tables().read(lake.path(changes_log(SOURCE)))
    assert rows is not None
    return sorted(row["lsn"] for row in rows.to_pylist() if row["table"] == TABLE)


@pytest.mark.parametrize("order", ["old first", "new first", "one batch"])
def test_p1_a_change_that_added_partitions_moved_is_taken_once(lake: Lake, order: str) -> None:
    source = HandSource()
    made = HandLake(lake, source)
    source.commit(Done("c", id=1), Done("c", id=2))
    first = placed(source.rows, 0)
    epoch(made, BEGUN, *first, *source.ends, partitions=1)

    source.commit(Done("u", id=1, name="x"), Done("c", id=3))
    source.commit(Done("u", id=1, name="y"))
    old, ends = placed(source.rows[2:], 0), source.ends[1:]
    moved = placed(source.rows, 1)
    match order:
        case "old first":
            epoch(made, *old, partitions=2)
            done = epoch(made, *moved, *ends, partitions=2)
        case "new first":
            epoch(made, *moved, partitions=2)
            done = epoch(made, *old, *ends, partitions=2)
        case _:
            done = epoch(made, *old, *moved, *ends, partitions=2)
    assert logged(lake) == sorted(row["lsn"] for row in source.rows)
    assert done.cuts[SOURCE] == source.lsn
    assert done.pending_from[SOURCE] == done.epoch + 1, "nothing is left over"

    source.commit(Done("d", id=3), Done("c", id=4))
    later = source.rows[-2:]
    done = epoch(made, *placed(later[:1], 0), *placed(later[1:], 1), source.ends[-1], partitions=2)
    assert logged(lake) == sorted(row["lsn"] for row in source.rows), "nothing is skipped"
    assert done.cuts[SOURCE] == source.lsn
