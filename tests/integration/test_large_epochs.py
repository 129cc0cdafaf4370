"""Epochs that are too large for the driver are read, decoded and written by Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from apps.settings import Settings
from kernel.errors import TooLarge, Unavailable
from kernel.loops import Loop
from kernel.positions import Offsets
from lake.attempt_files import stem_of
from lake.layout import Lake
from lake.tables import Tables
from pipeline.commit.manifest_rows import Committed
from pipeline.executor import MOST_PARTS, Executor, ExecutorChoice
from pipeline.installs.install_book import InstallBook
from pipeline.read.kafka_records import decode_records, read_records
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.stream import IngestRun
from tests.support.lake.feeding import STORE, Epochs, EventFeed, Fed, event_router
from tests.support.services.waiting import until

LOG = f"log/events/{STORE}"
MAX_RESULT = "spark.driver.maxResultSize"
SetLimit = Callable[[str], None]


@pytest.fixture
def most_results(spark: SparkSession) -> Iterator[SetLimit]:
    """Set what Spark lets come to the driver, until the test ends."""
    settings = spark.sparkContext._jsc.sc().conf()
    before = settings.get(MAX_RESULT)

    def set_limit(size: str) -> None:
        settings.set(MAX_RESULT, size)

    yield set_limit
    settings.set(MAX_RESULT, before)


def fed(feed: EventFeed, first: int, last: int) -> None:
    """Produce events by their positions, a record each."""
    for position in range(first, last + 1):
        event = Fed(position=position, flight=position % 97)
        feed.send_raw(feed.value(event), feed.headers(event), key=f"flight-{event.flight}")
        if position % 50_000 == 0:
            feed.flush()
    feed.flush()


SOME = 200_000
"""Records of a partition that are too many for the driver, and not for an executor."""


@pytest.mark.parametrize(
    ("records", "size"),
    [(30_000, "256k"), pytest.param(2_000_000, "32m", marks=pytest.mark.matrix)],
)
@pytest.mark.timeout(1800)
def test_an_epoch_passes_whose_rows_may_not_come_to_the_driver(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    most_results: SetLimit,
    records: int,
    size: str,
) -> None:
    feed = EventFeed(stack, prefix)
    fed(feed, 1, records)
    router = event_router(stack, prefix)
    epochs = Epochs(spark, lake, router, feed.bootstrap, executor=Executor.SPARK)
    most_results(size)
    done = epochs.run()
    assert done.heads == {STORE: records}
    assert done.counts["events"] == records
    table = Tables().open(lake.path(LOG))
    assert table is not None
    assert table.count() == records
    start = {topic: dict.fromkeys(places, 0) for topic, places in done.end.items()}
    # A task has its whole result in memory before Spark refuses it.
    some = {t: {p: min(end, SOME) for p, end in places.items()} for t, places in done.end.items()}
    frame = read_records(spark, feed.bootstrap, start, some)
    with pytest.raises(TooLarge):
        decode_records(frame, router, here=True, most_bytes=2**40)


def test_a_backlog_goes_by_executors_and_what_comes_then_by_the_driver(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, tmp_path: Path
) -> None:
    """The stream itself chooses, and finds out by itself when it guessed too low."""
    feed = EventFeed(stack, prefix)
    fed(feed, 1, 4_000)
    epochs = Epochs(spark, lake, event_router(stack, prefix), feed.bootstrap)
    choice = ExecutorChoice(asked=Executor.AUTO, driver_bytes=100_000, record_bytes=1)
    made: list[Committed] = []

    run = run_of(epochs, choice, tmp_path, made.append)
    run.start()
    try:
        until(lambda: len(made) == 1 or run.error is not None, "the backlog is an epoch")
        fed(feed, 4_001, 4_010)
        # The broker may get them in two requests, and the stream see them one after the other.
        until(lambda: taken(made) == 4_010 or run.error is not None, "what came then is taken in")
    finally:
        run.stop()
    assert run.error is None
    rows = epochs.table(LOG)
    assert sorted(rows["position"].to_pylist()) == list(range(1, 4_011))
    assert by_executors(lake, 1)
    assert not any(by_executors(lake, each.epoch) for each in made[1:])
    assert choice.of(4_000) is Executor.SPARK
    assert choice.of(10) is Executor.DRIVER


@pytest.mark.parametrize("apart", [False, True])
def test_a_backlog_is_made_into_epochs_that_the_driver_takes_in(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, tmp_path: Path, apart: bool
) -> None:
    """Each record once, in an order that goes on where the last epoch ended: amid a batch, too."""
    feed = EventFeed(stack, prefix)
    fed(feed, 1, 4_000)
    made: list[Committed] = []

    def begun(after_epoch: Callable[[Committed], None]) -> IngestRun:
        epochs = Epochs(spark, lake, event_router(stack, prefix), feed.bootstrap)
        choice = ExecutorChoice(
            asked=Executor.AUTO, driver_bytes=1_000_000, record_bytes=1_000, most_parts=MOST_PARTS
        )
        run = run_of(epochs, choice, tmp_path, after_epoch, apart=apart)
        run.finish_unfinished(epochs.manifest)
        run.start()
        return run

    def dies(done: Committed) -> None:
        made.append(done)
        if len(made) == 2:
            raise Unavailable("its process died amid a batch")

    first = begun(dies)
    until(lambda: first.error is not None, "it dies")
    assert "amid a batch" in str(first.error)
    first.stop()
    assert len(made) == 2
    second = begun(made.append)
    try:
        until(lambda: taken(made) == 4_000 or second.error is not None, "all are taken in")
    finally:
        second.stop()
    assert second.error is None
    rows = Tables().read(lake.path(LOG))
    assert rows is not None
    assert sorted(rows["position"].to_pylist()) == list(range(1, 4_001))
    assert [each.epoch for each in made] == list(range(1, len(made) + 1))
    assert max(each.counts["events"] for each in made) <= 900
    assert not any(by_executors(lake, each.epoch) for each in made)


def test_a_lane_that_is_to_end_decodes_no_further_part_of_its_batch(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever stops it waits for the part that is under way, and for nothing else."""
    feed = EventFeed(stack, prefix)
    fed(feed, 1, 4_000)
    epochs = Epochs(spark, lake, event_router(stack, prefix), feed.bootstrap)
    choice = ExecutorChoice(
        asked=Executor.AUTO, driver_bytes=1_000_000, record_bytes=1_000, most_parts=MOST_PARTS
    )
    stopping: list[Thread] = []

    def stop(_: Committed) -> None:
        thread = Thread(target=run.stop)
        thread.start()
        stopping.append(thread)
        until(lambda: run._stopping, "it is to end")

    run = run_of(epochs, choice, tmp_path, stop, apart=True)
    decoded, times = run._records.decoded, []

    def counted(start: Offsets, end: Offsets) -> pa.Table:
        times.append(end)
        return decoded(start, end)

    monkeypatch.setattr(run._records, "decoded", counted)
    run.start()
    until(lambda: stopping, "an epoch is made")
    stopping[0].join(60)
    assert not stopping[0].is_alive()
    assert len(times) == len(stopping) == 1
    assert run.error is None


def taken(made: Sequence[Committed]) -> int:
    """Return how many events some epochs took in."""
    return sum(each.counts["events"] for each in made)


def run_of(
    epochs: Epochs,
    choice: ExecutorChoice,
    folder: Path,
    after_epoch: Callable[[Committed], None],
    *,
    apart: bool = False,
) -> IngestRun:
    """Return a run of the stream itself over the topics of some epochs."""
    return IngestRun(
        epochs.spark,
        KafkaTopics(epochs.bootstrap),
        epochs.router,
        epochs.ingest,
        InstallBook(epochs.lake, epochs.tables),
        captures={},
        without=(),
        checkpoints=folder / "checkpoints",
        max_records=10_000,
        executor=choice,
        loop=Loop("ingest"),
        before_epoch=lambda: None,
        after_epoch=after_epoch,
        after_rest=lambda _: None,
        apart=apart,
    )


def by_executors(lake: Lake, epoch: int) -> bool:
    """Whether the log has files that executors wrote for an epoch."""
    table = Tables().open(lake.path(LOG))
    assert table is not None
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    return any(f"-{stem_of(epoch)}" in path for path in paths)
