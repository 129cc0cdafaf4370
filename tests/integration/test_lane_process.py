"""The child process of a lane that is apart gives what this process would read and decode."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.pipeline.routing import TopicRouter
from apps.settings import Settings
from kernel.errors import TooLarge, Unavailable
from lake.child_processes import NICENESS
from lake.layout import Lake
from pipeline.executor import Executor, ExecutorChoice
from pipeline.read import epoch_records
from pipeline.read.epoch_records import EpochRecords
from pipeline.read.lane_process import LaneProcess
from tests.support.lake.topic_stream import TopicStream, ping, reading

SOME = 60
SOURCES = """
CREATE SOURCE pings (device BIGINT, at TIMESTAMP, v INT) WITH (
  topic = '{0}-pings', format = 'json', key = device, event_time = at);
CREATE SOURCE readings WITH (topic = '{0}-readings', format = 'avro');
"""


@pytest.fixture
def stream(
    stack: Settings, spark: SparkSession, lake: Lake, prefix: str, tmp_path: Path
) -> TopicStream:
    return TopicStream(stack, spark, lake, prefix, tmp_path)


@pytest.fixture
def router(stream: TopicStream) -> Iterator[TopicRouter]:
    name = stream.prefix.rstrip(".")
    stream.deploy(SOURCES.format(name))
    stream.make(f"{name}-pings")
    stream.make(f"{name}-readings")
    stream.send(f"{name}-pings", [*(ping(n, n % 60) for n in range(SOME)), b"{no json", None])
    return stream.epochs().router


def test_a_child_decodes_what_this_process_would(
    stream: TopicStream, router: TopicRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"{stream.prefix.rstrip('.')}-pings"
    choice = ExecutorChoice(asked=Executor.AUTO, driver_bytes=2**25)
    process = LaneProcess(stream.bootstrap, router)
    here = EpochRecords(stream.spark, stream.bootstrap, router, choice)
    beside = EpochRecords(stream.spark, stream.bootstrap, router, choice, process=process)
    monkeypatch.setattr(epoch_records, "WORTH_A_PROCESS", 10)
    try:
        for start, end in ((0, SOME // 2), (SOME // 2, SOME + 2)):
            within = {topic: {"0": start}}, {topic: {"0": end}}
            rows = beside.early(*within)
            assert rows is not None
            assert rows.equals(here.decoded(*within))
            assert rows.num_rows == end - start
        with pytest.raises(TooLarge):
            process.decoded({topic: {"0": 0}}, {topic: {"0": SOME}}, most_bytes=10)
        assert process.decoded({}, {topic: {"0": SOME}}, most_bytes=2**25) is None, "Spark has to"
    finally:
        here.close()
        beside.close()


def test_a_child_that_dies_or_finds_no_registry_says_so_and_the_next_one_goes_on(
    stream: TopicStream, router: TopicRouter
) -> None:
    name = stream.prefix.rstrip(".")
    stream.send(f"{name}-readings", [reading(1, n, 20.5) for n in range(SOME)])
    pings, readings = (
        ({f"{name}-{kind}": {"0": 0}}, {f"{name}-{kind}": {"0": SOME}})
        for kind in ("pings", "readings")
    )
    nobody = TopicRouter(
        prefix=router.prefix,
        registry_url="http://127.0.0.1:9",
        captures=router.captures,
        external=router.external,
    )
    process = LaneProcess(stream.bootstrap, nobody)
    try:
        with pytest.raises(Unavailable, match="registry"):
            process.decoded(*readings, most_bytes=2**25)
        child = process._child.process
        assert child is not None
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == min(19, os.nice(0) + NICENESS)
        child.send_signal(signal.SIGSTOP)
        threading.Timer(0.1, child.kill).start()
        with pytest.raises(Unavailable, match="ended amid its work"):
            process.decoded(*pings, most_bytes=2**25)
        rows = process.decoded(*pings, most_bytes=2**25)
        assert rows is not None
        assert rows.num_rows == SOME
    finally:
        process.close()
