"""Penstock's side: a declared topic with an identity, three projections, a pipeline to be killed.

When the effect of a record could be read is read off the lake afterwards: the commit of the
projection's table that covers the epoch in which the record was.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path

import psutil
from deltalake import DeltaTable

from benchmarks.cdc.visibility import Moments, commits_of
from benchmarks.cdc.world import World
from benchmarks.disturbed.changes import KEYS, VALUES
from benchmarks.disturbed.oracle import QUERIES, Rows, Seen
from benchmarks.disturbed.sending import Sent
from benchmarks.eventstore.cost import cpu_seconds
from kernel.errors import Unavailable
from lake.datasets import dataset_of
from lake.layout import topics_log
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from projections.run.catalog import DeployedCatalog
from projections.run.targets import live_target

_SQL = """
CREATE SOURCE {0} (number BIGINT, item STRING, at TIMESTAMP, amount BIGINT) WITH (
  topic = '{0}', format = 'json', event_time = at, identity = number, lateness = '1 hour'
);
CREATE PROJECTION totals WITH (key = 'item', freshness = '{1}') AS
SELECT item, COUNT(*) AS n, SUM(amount) AS amount FROM STREAM {0} GROUP BY item;
CREATE PROJECTION windows WITH (key = 'item, window_start', freshness = '{1}') AS
SELECT item, window_start, COUNT(*) AS n, SUM(amount) AS amount
FROM STREAM {0} GROUP BY item, TUMBLE(at, '10 seconds');
CREATE PROJECTION newest WITH (key = 'item', freshness = '{1}') AS
SELECT item, number, amount, at FROM STREAM {0};
"""
FRESHNESS = "100 milliseconds"
_FIRST_S = 300.0
_BY_NAME = ("calm_p50_s", "calm_p95_s", "killed_max_s", "effects_unseen")


class ByPenstock:
    """The pipeline of a stack, and what it makes of one topic."""

    promise = (
        "each record once in every row, by epoch and identity, whatever dies; rows, offsets and "
        "state are guarded Delta commits; a reader of the table never sees half an epoch"
    )

    def __init__(self, world: World, topic: str) -> None:
        self._world, self._topic = world, topic
        self._opened: AbstractContextManager[psutil.Process] | None = None
        self._process: psutil.Process | None = None
        self._spent, self._declared = 0.0, False

    def _declare(self) -> None:
        self._declared = True
        workspace = self._world.settings.workspace
        file = workspace / "disturbed.sql"
        file.write_text(_SQL.format(self._topic, FRESHNESS))
        program = Path(sys.executable).with_name("penstock")
        words = [program, "projection", "apply", str(file), "-w", str(workspace)]
        subprocess.run(words, check=True, stdout=sys.stderr)

    def start(self) -> None:
        """Start the pipeline; returns when the first records are in every table."""
        again = self._declared
        if not again:
            self._declare()
        self._opened = self._world.pipeline()
        self._process = self._opened.__enter__()
        if not again and not self._read_up_to(1, _FIRST_S):
            raise Unavailable("the pipeline does not read: see pipeline.log in its folder")

    def kill(self) -> float:
        """End it by SIGKILL, and return the processor seconds that it took until then."""
        assert self._process is not None
        self._spent = self.cpu_s()
        self._process.kill()
        self.stop()
        return self._spent

    def stop(self) -> None:
        """End it, if it runs."""
        opened, self._opened, self._process = self._opened, None, None
        if opened is not None:
            opened.__exit__(None, None, None)

    def cpu_s(self) -> float:
        """Return the processor seconds of all its processes, those before the kill among them."""
        return self._spent + (cpu_seconds([self._process.pid]) if self._process else 0.0)

    def settled(self, sent: Sent, timeout_s: float) -> bool:
        """Wait until all that was sent is in each projection's table."""
        return self._read_up_to(sent.records, timeout_s)

    def _read_up_to(self, end: int, timeout_s: float) -> bool:
        """Wait until all records before offset `end` are in each projection's table."""
        manifest, deadline = Manifest(self._world.lake, Tables()), time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            last = manifest.last()
            if last is not None and last.end.get(self._topic, {}).get("0", 0) >= end:
                epochs = self._epochs()
                needed = max(epochs.values())
                if all(self._written(query).since(needed) is not None for query in QUERIES):
                    return True
            time.sleep(0.5)
        return False

    def rows(self) -> dict[str, Rows]:
        """Return the rows of each projection's table, as any reader of Delta has them."""
        return {query: self._rows(query) for query in QUERIES}

    def seen(self, sent: Sent) -> dict[str, Seen]:
        """Return when the effect of each record could be read, by query and number."""
        epochs = self._epochs()
        return {query: _covered(epochs, self._written(query)) for query in QUERIES}

    def figures(self, sent: Sent) -> dict[str, float]:
        """Return how many epochs there were, and how old records were for readers by name."""
        epochs = self._epochs()
        found = {"epochs": float(len(set(epochs.values())))}
        for query in QUERIES:
            ages = sent.ages(query, _covered(epochs, self._noted(query)))
            found |= {f"{query}.by_name_{name}": ages[name] for name in _BY_NAME}
        return found

    def _epochs(self) -> dict[int, int]:
        """Return the epoch in which each record was first, by number."""
        name = topics_log(self._topic)
        rows = Tables().read(self._world.lake.path(name), columns=["epoch", "value"])
        if rows is None:
            raise Unavailable(f"nothing of {self._topic} was read")
        found: dict[int, int] = {}
        pairs = zip(rows["epoch"].to_pylist(), rows["value"].to_pylist(), strict=True)
        for epoch, value in pairs:
            record = json.loads(value)["number"]
            found[record] = min(epoch, found.get(record, epoch))
        return found

    def _written(self, query: str) -> Moments:
        """Return when each epoch was committed to a projection's table."""
        return commits_of(self._world.lake, f"projection/{query}", self._guard(query))

    def _noted(self, query: str) -> Moments:
        """Return when the manifest noted each epoch of a projection."""
        return commits_of(self._world.lake, "epochs", f"epochs/{self._guard(query)}")

    def _guard(self, query: str) -> str:
        lake = self._world.lake
        deployed = DeployedCatalog(lake, Tables()).deployment().projections
        return live_target(lake, query, deployed[query][0].generation).app_id

    def _rows(self, query: str) -> Rows:
        columns = (*KEYS[query], *VALUES[query])
        table = dataset_of(DeltaTable(self._world.lake.path(f"projection/{query}"))).to_table(
            columns=list(columns)
        )
        keys = len(KEYS[query])
        rows = [tuple(_plain(value) for value in row.values()) for row in table.to_pylist()]
        if len({row[:keys] for row in rows}) != len(rows):
            raise Unavailable(f"{query} has several rows of one key")
        return {row[:keys]: row[keys:] for row in rows}


def _covered(epochs: Mapping[int, int], moments: Moments) -> Seen:
    """Return when the epoch of each record was covered first, by the record's number."""
    at = {epoch: moments.since(epoch) for epoch in set(epochs.values())}
    return {n: since for n, epoch in epochs.items() if (since := at[epoch]) is not None}


def _plain(value: object) -> object:
    """Return a time as milliseconds since 1970, and all else as it is."""
    return round(value.timestamp() * 1_000) if isinstance(value, datetime) else value
