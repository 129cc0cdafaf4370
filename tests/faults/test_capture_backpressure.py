"""A burst into a stalled lake: lag is honest, epochs stay small, and it catches up by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from apps.pipeline.metrics import PipelineMetrics
from apps.pipeline.pipeline import Pipeline
from apps.settings import Settings
from eventstore.postgres.heads import PostgresHeads
from kernel import failpoints
from kernel.positions import Epoch
from lake.attempt_files import stem_of
from lake.layers import read_whole
from lake.layout import changes_log, current_name
from lake.storage import files_below
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from tests.support.services.waiting import until
from tests.support.sources.source_database import SourceDatabase
from tests.support.sources.workspaces import Workspace

TABLE = "public.parcels"
ROWS = 2_000
MOST = 500
DRIVER_BYTES = 20_000
"""So that what is left of a burst is the executors', and what comes otherwise the driver's."""
SHOP = f"""
CREATE TABLE parcels (id bigint PRIMARY KEY, state text NOT NULL, moved int NOT NULL);
INSERT INTO parcels SELECT i, 'new', 0 FROM generate_series(1, {ROWS}) i;
"""
BURST = 40
LITTLE = 64 * 1024
"""Bytes of WAL that a database writes by itself, between two heartbeats of the connector."""


class Running(SourceDatabase):
    """A pipeline in this process, over one captured source."""

    def __init__(self, spark: SparkSession, workspace: Workspace, dsn: str) -> None:
        settings = workspace.settings
        self.workspace = workspace
        self.dsn = dsn
        self._heads = PostgresHeads(settings.required("postgres.dsn"))
        self.pipeline = Pipeline(spark, settings, PipelineMetrics(), self._heads)
        self._thread = threading.Thread(target=self.pipeline.run, name="pipeline")
        self._thread.start()

    def stop(self) -> None:
        failpoints.disarm()
        self.pipeline.stopping.set()
        self._thread.join(60)
        self._heads.close()

    def lag(self) -> dict[str, float]:
        """What the pipeline says of its source."""
        _, state = self.pipeline.health()
        sources = state["sources"]
        assert isinstance(sources, dict)
        found: dict[str, float] = sources.get(self.workspace.source, {})
        return found

    def equals_source(self) -> bool:
        """Whether the table, as of the newest epoch, is what the source selects."""
        last = Manifest(self.workspace.lake, Tables()).last()
        name = current_name(self.workspace.source, TABLE)
        if last is None or name not in last.tables:
            return False
        rows = read_whole(self.workspace.lake, Tables(), name, at=last.tables)
        return rows is not None and not self.differences(TABLE, rows)

    def wal(self, statement: str) -> int:
        """Return a WAL position of the source database."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(f"SELECT ({statement} - '0/0'::pg_lsn)::bigint".encode())
            found = row.fetchone()
        assert found is not None
        return int(found[0])

    def burst(self) -> None:
        """Change every row, many times over."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for number in range(BURST):
                connection.execute(
                    "UPDATE parcels SET state = %s, moved = moved + 1 WHERE id %% 8 = %s",
                    (f"s{number}", number % 8),
                )


@pytest.fixture
def running(
    tmp_path: Path, stack: Settings, spark: SparkSession, new_source: Callable[[str], str]
) -> Iterator[Running]:
    bounds = {"pipeline.max_records_per_epoch": MOST, "pipeline.driver_bytes": DRIVER_BYTES}
    workspace = Workspace(tmp_path, stack, **{name: str(most) for name, most in bounds.items()})
    dsn = new_source(SHOP)
    workspace("add", workspace.source, "--dsn", dsn, "--tables", TABLE)
    found = Running(spark, workspace, make_conninfo(dsn))
    yield found
    found.stop()
    workspace("remove", workspace.source, "--yes")


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_p9_a_stalled_lake_shows_its_lag_and_catches_up_by_itself(running: Running) -> None:
    until(running.equals_source, "the snapshot is there", deadline_s=240)
    until(lambda: running.lag().get("bytes", 2**40) < LITTLE, "hardly any lag", deadline_s=60)

    failpoints.arm(failpoints.EPOCH_AFTER_LOG, "hold")
    before = running.wal("pg_current_wal_lsn()")
    running.burst()
    written = running.wal("pg_current_wal_lsn()") - before
    assert written > 4 * LITTLE
    last = Manifest(running.workspace.lake, Tables()).last()
    assert last is not None
    stalled_at = last.epoch

    def shown() -> bool:
        lag = running.lag()
        return lag["bytes"] >= written and lag["records"] >= ROWS and lag["seconds"] > 2

    until(shown, "the lag of the stalled source is shown", deadline_s=60)
    ages = [running.lag()["seconds"]]
    until(lambda: running.lag()["seconds"] > ages[0] + 1, "the lag grows with the stall")

    failpoints.disarm()
    until(running.equals_source, "the tables have caught up", deadline_s=240)
    until(lambda: running.lag()["records"] == 0, "Kafka is read to its end", deadline_s=60)
    until(lambda: running.lag()["bytes"] < LITTLE, "hardly any lag is left", deadline_s=60)
    until(lambda: running.lag()["seconds"] < ages[0], "nor is what is missing old", deadline_s=60)
    # The backlog may have been large to its end: a single row is the driver's for certain.
    running.execute("UPDATE parcels SET moved = moved + 1 WHERE id = 1")
    until(running.equals_source, "a single row follows", deadline_s=60)
    epochs = Manifest(running.workspace.lake, Tables()).between(
        stalled_at, Epoch(stalled_at + 10_000)
    )
    changes = [done.counts.get("changes", 0) for done in epochs]
    assert sum(changes) == BURST * ROWS // 8 + 1
    assert max(changes) <= MOST, "an epoch took more than it may"
    log = running.workspace.lake.path(changes_log(running.workspace.source))
    names = {file.name for file in files_below(log)}
    large = {done.epoch for done in epochs if any(_by_executors(done.epoch, n) for n in names)}
    assert large, "executors wrote none of the backlog"
    assert large < {done.epoch for done in epochs}, "executors wrote everything"


def _by_executors(epoch: int, name: str) -> bool:
    return f"-{stem_of(epoch)}" in name
