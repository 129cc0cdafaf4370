"""A crash at any step of an epoch of an external topic loses no record and repeats none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel import failpoints
from lake.layout import Lake
from pipeline.executor import Executor
from tests.support.lake.topic_stream import TopicStream

AROUND_THE_LOG = (
    failpoints.EPOCH_AFTER_BIND,
    failpoints.EPOCH_AFTER_LOG,
    failpoints.EPOCH_AFTER_MANIFEST,
)


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.mark.parametrize(
    ("executor", "steps"),
    [
        (Executor.DRIVER, AROUND_THE_LOG),
        pytest.param(Executor.DRIVER, failpoints.EPOCH_STEPS, marks=pytest.mark.matrix),
        pytest.param(
            Executor.SPARK,
            (*failpoints.EPOCH_STEPS, failpoints.STAGED_BEFORE_COMMIT),
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_p1_a_crash_at_each_step_of_a_topics_epoch_ends_in_each_record_once(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    tmp_path: Path,
    executor: Executor,
    steps: tuple[str, ...],
) -> None:
    stream = TopicStream(stack, spark, lake, prefix, tmp_path)
    topic = f"{prefix}pings"
    stream.deploy(f"CREATE SOURCE pings (n INT) WITH (topic = '{topic}', format = csv, key = n);")
    stream.make(topic)
    crashed = stream.epochs(executor)
    for number, failpoint in enumerate(steps, start=1):
        stream.send(topic, [f"{number}".encode(), b'"no number"', None], key=f"{number}".encode())
        failpoints.arm(failpoint)
        with pytest.raises(failpoints.Crash):
            crashed.run()
        crashed.restart()
        crashed.recover()
        if crashed.ingest.next_epoch == number:
            crashed.run()
        assert crashed.ingest.next_epoch == number + 1, failpoint
        assert crashed.manifest.unfinished() is None, failpoint
    offsets = [offset for (offset,) in stream.rows("log/topics/pings", "offset")]
    refused = [offset for (offset,) in stream.rows("quarantine/records", "offset")]
    assert refused == [3 * number + 1 for number in range(len(steps))]
    assert sorted([*offsets, *refused]) == [*range(3 * len(steps))]
