"""An idle source on the real stream: heartbeats make no epochs, and what follows them is whole."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from apps.capture import capture_site
from apps.settings import Settings, load
from cdc import sources
from cdc.database import split_password
from cdc.upkeep.source_lag import SourceHeads
from kernel import failpoints
from kernel.loops import Loop
from kernel.positions import Offsets, covers
from lake.layout import Lake
from pipeline.commit.manifest_rows import Committed
from pipeline.executor import Executor, ExecutorChoice
from pipeline.installs.install_book import InstallBook
from pipeline.position.lag import SourceLag
from pipeline.process.watchdog import Watchdog, Watched
from pipeline.read.kafka_topics import KafkaTopics
from pipeline.read.stream import IngestRun
from tests.support.services.waiting import until
from tests.support.sources.mirroring import Mirror, mirrored

NOTES = """
CREATE TABLE note (id bigint PRIMARY KEY, said text); INSERT INTO note VALUES (1, 'one');
CREATE TABLE elsewhere (what text);
"""
BEAT = "SELECT pg_logical_emit_message(false, 'penstock.heartbeat', '')"
"""What the connector sends every five seconds."""
MEGABYTE = 1024**2


@dataclass
class Stream:
    """The stream over one source, run after run, as a pipeline's process makes them."""

    notes: Mirror
    spark: SparkSession
    folder: Path
    made: list[Committed] = field(default_factory=list)
    rested: list[Offsets] = field(default_factory=list)
    last: Committed | None = None
    loop: Loop = field(default_factory=lambda: Loop("ingest"))

    def begin(self) -> IngestRun:
        """Start a run as a new process does: what the one before had in memory is lost."""
        run = self.prepared()
        run.start()
        return run

    def prepared(self) -> IngestRun:
        """Return a run of a new process that reads nothing yet."""
        epochs = self.notes.epochs
        epochs.restart()
        self.last = epochs.ingest.last
        run = IngestRun(
            self.spark,
            KafkaTopics(epochs.bootstrap),
            epochs.router,
            epochs.ingest,
            InstallBook(self.notes.lake, epochs.tables),
            captures={self.notes.name: ()},
            without=(),
            checkpoints=self.folder / "checkpoints",
            max_records=10_000,
            executor=ExecutorChoice(asked=Executor.AUTO, driver_bytes=2**25),
            loop=self.loop,
            before_epoch=lambda: None,
            after_epoch=self._committed,
            after_rest=self._rested,
        )
        assert run.finish_unfinished(epochs.manifest) is None
        return run

    def beat(self, run: IngestRun) -> None:
        """Let a heartbeat pass, and wait until its batch was read."""
        before = len(self.rested) + len(self.made)
        self.notes.execute(BEAT)
        self.wait(run, lambda: len(self.rested) + len(self.made) > before, "the beat is read")

    def wait(self, run: IngestRun, done: Callable[[], bool], what: str) -> None:
        until(lambda: done() or run.error is not None, what)
        assert run.error is None

    def files(self) -> set[Path]:
        return {path for path in Path(self.notes.lake.root).rglob("*") if path.is_file()}

    def _committed(self, done: Committed) -> None:
        self.last = done
        self.made.append(done)

    def _rested(self, read: Offsets) -> None:
        assert self.last is not None
        self.last = replace(self.last, end={**self.last.end, **read})
        self.rested.append(read)


@pytest.fixture
def stream(
    stack: Settings,
    spark: SparkSession,
    lake: Lake,
    prefix: str,
    new_source: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[Stream]:
    with mirrored(stack, spark, lake, prefix, new_source(NOTES), ("public.note",)) as mirror:
        mirror.catch_up()
        yield Stream(mirror, spark, tmp_path)


def test_heartbeats_make_no_epochs_and_a_kill_among_them_loses_nothing(stream: Stream) -> None:
    notes = stream.notes
    run = stream.begin()
    try:
        stream.beat(run)
        # Beyond the connector's own first words, which may come late.
        made, before, first = len(stream.made), stream.files(), stream.last
        assert first is not None
        for _ in range(4):
            stream.beat(run)
        assert (len(stream.made), stream.files()) == (made, before), "nothing is written"
    finally:
        # Nothing was written since, so that this is all that a kill leaves behind.
        run.stop()
    notes.execute("INSERT INTO note VALUES (2, 'two')")
    read = stream.rested[-1]
    stream.made.clear()
    run = stream.begin()
    try:
        assert stream.last is not None
        assert stream.last.epoch == first.epoch
        mark = notes.mark()
        stream.wait(run, lambda: notes.cut() > mark, "the insert is folded")
    finally:
        run.stop()
    # A transaction may come in two batches, its BEGIN in the first: one epoch has its row.
    assert [done.epoch for done in stream.made] == [
        first.epoch + 1 + n for n in range(len(stream.made))
    ]
    assert sum(done.counts.get("changes", 0) for done in stream.made) == 1
    assert covers(stream.made[-1].end, read)
    notes.assert_equal()


@pytest.mark.matrix
def test_a_batch_that_begins_while_its_run_is_stopped_does_not_hold_it(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, begun = stream.prepared(), threading.Event()
    at_work = run._at_work

    def seen(batch_id: int, end: Offsets) -> None:
        begun.set()
        at_work(batch_id, end)

    monkeypatch.setattr(run, "_at_work", seen)
    run.start()
    stream.beat(run)
    planner = run._planner
    assert planner is not None
    stop = planner.stop

    def stop_amid_a_batch() -> None:
        begun.clear()
        stream.notes.execute(BEAT)
        assert begun.wait(60), "a batch begins when the run is about to end"
        stop()

    monkeypatch.setattr(planner, "stop", stop_amid_a_batch)
    stopping = threading.Thread(target=run.stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive(), "the run ends"
    assert run.error is None


@pytest.mark.matrix
def test_an_epoch_that_hangs_is_seen_and_one_that_gets_on_is_not(stream: Stream) -> None:
    run = stream.begin()
    stream.beat(run)
    watchdog = Watchdog(
        [Watched(loop=stream.loop, bound_s=0.3, probe=run.signs)], end_after_s=0, end=pytest.fail
    )

    def still() -> dict[str, str]:
        watchdog.probe()
        watchdog.look()
        return watchdog.still

    until(lambda: run.unread() == 0 and not still(), "whoever rests stands where it should")
    failpoints.arm(failpoints.EPOCH_AFTER_LOG, "hold")
    try:
        stream.notes.execute("INSERT INTO note VALUES (2, 'two')")
        where = f"since {failpoints.EPOCH_AFTER_LOG}"
        until(lambda: where in still().get("ingest", ""), "the epoch stands still there")
    finally:
        failpoints.disarm()
    stream.wait(run, lambda: not still() and run.unread() == 0, "the epoch gets on")
    run.stop()


@pytest.mark.matrix
def test_records_that_nobody_reads_are_seen(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, let_go = stream.prepared(), threading.Event()
    at_work = run._at_work

    def late(batch_id: int, end: Offsets) -> None:
        assert let_go.wait(120)
        at_work(batch_id, end)

    monkeypatch.setattr(run, "_at_work", late)
    run.start()
    watchdog = Watchdog(
        [Watched(loop=stream.loop, bound_s=0.3, probe=run.signs)], end_after_s=0, end=pytest.fail
    )

    def still() -> str:
        watchdog.probe()
        watchdog.look()
        return watchdog.still.get("ingest", "")

    try:
        until(lambda: "records wait in Kafka" in still(), "they are said to wait")
    finally:
        let_go.set()
    stream.wait(run, lambda: not still() and run.unread() == 0, "they are read")
    run.stop()


@pytest.mark.matrix
def test_an_idle_source_in_a_busy_database_is_not_said_to_lag(
    stream: Stream, stack: Settings, prefix: str, tmp_path: Path
) -> None:
    notes = stream.notes
    folder = tmp_path / "workspace"
    folder.mkdir()
    said = {"workspace.name": "test", "kafka.topic_prefix": prefix, "lake.path": notes.lake.root}
    lines = [
        f"[{key.partition('.')[0]}]\n{key.partition('.')[2]} = {json.dumps(value)}"
        for key, value in said.items()
    ]
    (folder / "penstock.toml").write_text("\n".join(lines))
    sources.save(folder, notes.source, split_password(notes.dsn)[1])
    heads = SourceHeads(capture_site(load(folder)), KafkaTopics(stack.required("kafka.bootstrap")))

    def lag() -> SourceLag:
        found = heads.look([notes.name], stream.last)[notes.name]
        assert found.unknown is None
        return found

    run = stream.begin()
    try:
        stream.beat(run)
        made = len(stream.made)
        notes.execute(
            "INSERT INTO elsewhere SELECT repeat('x', 1000) FROM generate_series(1, 4000)"
        )
        assert lag().bytes > MEGABYTE, "nobody knows yet that none of it is ours"
        stream.beat(run)
        # Read, and confirmed to the server since: in between two looks it becomes known.
        stream.wait(run, lambda: lag().bytes < MEGABYTE, "the lag is that of an idle source")
        assert lag().records == 0
        assert len(stream.made) == made
    finally:
        run.stop()
        heads.close()
