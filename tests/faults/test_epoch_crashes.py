"""A crash at any step of an epoch repeats the step and ends in the same rows."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel import failpoints
from projections.log.layout import Lake
from tests.support.lake.feeding import STORE, Epochs, EventFeed, Fed, event_router

LOG = f"log/events/{STORE}"
FIRST = [Fed(position=p, flight=p % 5) for p in range(1, 21)]
SECOND = [Fed(position=p, flight=p % 5, type="arrived") for p in range(21, 41)]
VARIES = ["ingested_at"]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def rows_of(epochs: Epochs, name: str = LOG) -> list[dict[str, object]]:
    table: pa.Table = epochs.table(name).drop_columns(VARIES)
    return sorted(
        table.to_pylist(), key=lambda row: (row["topic"], row["partition"], row["offset"])
    )


@pytest.mark.parametrize("failpoint", failpoints.EPOCH_STEPS)
def test_p1_a_crash_at_each_step_of_an_epoch_ends_in_the_same_rows(
    failpoint: str, stack: Settings, spark: SparkSession, lake: Lake, prefix: str
) -> None:
    feed = EventFeed(stack, prefix)
    router = event_router(stack, prefix)
    feed.send(FIRST)
    crashed = Epochs(spark, lake, router, feed.bootstrap)
    crashed.run()
    feed.send(SECOND)
    feed.send_raw(b"not avro", {"type": "poison"})
    feed.flush()

    failpoints.arm(failpoint)
    with pytest.raises(failpoints.Crash):
        crashed.run()
    crashed.restart()
    crashed.recover()
    if crashed.ingest.next_epoch == 2:
        crashed.run()

    calm = Epochs(spark, Lake(f"{lake.root}-calm"), router, feed.bootstrap)
    first, second = crashed.manifest.between(0, 2)
    calm.run(up_to={t: dict(p) for t, p in first.end.items()})
    calm.run(up_to={t: dict(p) for t, p in second.end.items()})

    assert rows_of(crashed) == rows_of(calm)
    assert len(rows_of(crashed)) == 40
    assert rows_of(crashed, "quarantine/records") == rows_of(calm, "quarantine/records")
    assert len(rows_of(crashed, "quarantine/records")) == 1
    assert second.heads == {STORE: 40}
    assert crashed.manifest.unfinished() is None
