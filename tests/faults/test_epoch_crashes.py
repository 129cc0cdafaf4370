"""A crash at any step of an epoch repeats the step and ends in the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel import failpoints
from lake.layout import Lake
from pipeline.executor import Executor
from tests.support.lake.feeding import STORE, Epochs, EventFeed, Fed, event_router
from tests.support.lake.left_files import left_files

LOG = f"log/events/{STORE}"
EACH = 20
VARIES = ["ingested_at"]
ON_EXECUTORS = (
    failpoints.EPOCH_AFTER_BIND,
    failpoints.STAGED_BEFORE_COMMIT,
    failpoints.EPOCH_AFTER_QUARANTINE,
    failpoints.EPOCH_AFTER_LOG,
)


def events(number: int) -> list[Fed]:
    """Return what is fed before an epoch; types take turns."""
    positions = range(EACH * number + 1, EACH * (number + 1) + 1)
    return [
        Fed(position=p, flight=p % 5, type=("departed", "arrived")[number % 2]) for p in positions
    ]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


def rows_of(epochs: Epochs, name: str = LOG) -> list[dict[str, object]]:
    table: pa.Table = epochs.table(name).drop_columns(VARIES)
    return sorted(
        table.to_pylist(), key=lambda row: (row["topic"], row["partition"], row["offset"])
    )


@pytest.mark.parametrize(
    "executor", [Executor.DRIVER, pytest.param(Executor.SPARK, marks=pytest.mark.matrix)]
)
def test_p1_a_crash_at_each_step_of_an_epoch_ends_in_the_same_rows(
    stack: Settings, spark: SparkSession, any_lake: Lake, prefix: str, executor: Executor
) -> None:
    ends_in_the_same_rows(stack, spark, any_lake, prefix, executor, failpoints.EPOCH_STEPS)


def test_p1_a_crash_while_executors_write_ends_in_the_same_rows(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str
) -> None:
    ends_in_the_same_rows(stack, spark, lake, prefix, Executor.SPARK, ON_EXECUTORS)


def ends_in_the_same_rows(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    executor: Executor,
    steps: Sequence[str],
) -> None:
    """Epoch by epoch another step crashes, always with a record among the others that is poison.

    The crash-free run is the driver's, whoever works in the other one.
    """
    feed = EventFeed(stack, prefix)
    router = event_router(stack, prefix)
    feed.send(events(0))
    crashed = Epochs(spark, lake, router, feed.bootstrap, executor=executor)
    crashed.run()
    for number, failpoint in enumerate(steps, start=1):
        feed.send(events(number))
        feed.send_raw(b"not avro", {"type": "poison"})
        feed.flush()
        failpoints.arm(failpoint)
        with pytest.raises(failpoints.Crash):
            crashed.run()
        crashed.restart()
        crashed.recover()
        if crashed.ingest.next_epoch == number + 1:
            crashed.run()
        assert crashed.ingest.next_epoch == number + 2, failpoint
        assert crashed.manifest.unfinished() is None, failpoint

    calm = Epochs(
        spark, Lake(f"{lake.root}-calm"), router, feed.bootstrap, executor=Executor.DRIVER
    )
    done = crashed.manifest.between(0, len(steps) + 1)
    for epoch in done:
        calm.run(up_to={t: dict(p) for t, p in epoch.end.items()})

    assert rows_of(crashed) == rows_of(calm)
    assert len(rows_of(crashed)) == EACH * len(done)
    assert rows_of(crashed, "quarantine/records") == rows_of(calm, "quarantine/records")
    assert len(rows_of(crashed, "quarantine/records")) == len(steps)
    assert executor is Executor.DRIVER or left_files(lake) == []
    assert [epoch.heads for epoch in done] == [{STORE: EACH * n} for n in range(1, len(done) + 1)]
