"""How long a row by its key takes over HTTP, while the table gets a new version each second.

The candidate holds the rows in memory; the baseline reads the files that may have the key with each
request (`service.lookup_memory_bytes = 0`), which is how projections beyond the bound are served.
"""

from __future__ import annotations

import http.client
import json
import random
import select
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

from benchmarks.eventstore.cluster import running
from benchmarks.eventstore.cost import cpu_seconds
from benchmarks.eventstore.penstock import service
from benchmarks.harness import Context, Figures
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from lake.writer import UPSERT, ArrowWriter, Guard, with_op
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Bound, Committed, Projected
from pipeline.position.progress import Progress
from projections.run.catalog import LIVE, PROJECTION, DeployedCatalog, Entry

NAME = "lookups"
CONDITIONS = (
    "GET /v1/projections/seen/rows?key=… with keys at random over keep-alive connections, the next "
    "request when the answer is there; each answer is of one epoch, at most a second old; 100 rows "
    "of the table are merged each second, by a process of its own; service, PostgreSQL and readers "
    "share the cores"
)
CHANGED = 100
_SQL = "CREATE PROJECTION seen WITH (key = 'id') AS SELECT id, word, n FROM STREAM events.a.b;"
_APP = "projection/seen/g1"


def add_options(parser: ArgumentParser) -> None:
    """Add the size of the table, and how it is asked."""
    group = parser.add_argument_group("lookups")
    group.add_argument("--lookups-rows", type=int, default=200_000, help="of the table (200,000)")
    group.add_argument("--lookups-readers", type=int, default=4, help="connections (4)")
    group.add_argument("--lookups-seconds", type=float, default=15.0, help="per repetition (15)")


def run(context: Context) -> Figures:
    """Look up what is held."""
    return _looked_up(context, "held", {})


def BASELINE(context: Context) -> Figures:
    """Look up what is read from files."""
    return _looked_up(context, "scanned", {"PENSTOCK_SERVICE_LOOKUP_MEMORY_BYTES": "0"})


class _Table:
    """The projection's table, written as the projector writes it."""

    def __init__(self, lake: Lake, rows: int) -> None:
        self._lake, self._rows, self._tables = lake, rows, Tables()
        self._writer, self._manifest = ArrowWriter(self._tables), Manifest(lake, self._tables)
        entry = Entry(kind=PROJECTION, name="seen", generation=1, status=LIVE, text=_SQL)
        DeployedCatalog(lake, self._tables).put([entry])
        self._epoch = 0
        self.merge(range(rows))

    def merge(self, ids: range | list[int]) -> None:
        """Commit an epoch in which these rows changed."""
        self._epoch += 1
        epoch = Epoch(self._epoch)
        rows = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "word": pa.array([f"word {number % 977}" for number in ids]),
                "n": pa.array([epoch] * len(ids), pa.int64()),
                "_epoch": pa.array([epoch] * len(ids), pa.int64()),
            }
        )
        self._manifest.bind(Bound(epoch=epoch, run_id="b", batch_id=0, start={}, end={}))
        path = self._lake.path("projection/seen")
        version = self._writer.merge(path, with_op(rows, UPSERT), Guard(_APP, epoch), keys=["id"])
        self._manifest.commit(_committed(epoch))
        at = TableAt(version=version, as_of_epoch=epoch)
        self._manifest.project(Projected(epoch=epoch, name=_APP, tables={"projection/seen": at}))

    def keep_changing(self) -> None:
        """Merge some rows each second, until there is nobody any more who wants it."""
        dice, began, merges = random.Random(1), time.monotonic(), 0
        while not select.select([sys.stdin], [], [], max(0.0, began + 1.0 - time.monotonic()))[0]:
            began = time.monotonic()
            self.merge(sorted(dice.sample(range(self._rows), CHANGED)))
            merges += 1
        print(merges)


@contextmanager
def _changing(lake: Path, rows: int) -> Iterator[subprocess.Popen[str]]:
    """Have a table that is merged into, from the first line on that its process is sent."""
    command = [sys.executable, "-m", "benchmarks.lookups", str(lake), str(rows)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None, "it is a pipe"
        if not process.stdout.readline():
            raise SystemExit("the table was not made")
        yield process


def _committed(epoch: Epoch) -> Committed:
    return Committed(
        epoch=epoch,
        run_id="b",
        batch_id=0,
        end={},
        progress=Progress().to_json(),
        heads={},
        cuts={},
        pending_from={},
        tables={},
        counts={},
        timings_ms={},
        at=datetime.now(UTC),
    )


def _looked_up(context: Context, name: str, more: dict[str, str]) -> Figures:
    options = context.options
    cluster = context.once("postgres", lambda: running(context.folder))
    workspace = Path(context.folder, f"{name}-{context.repetition}")
    workspace.mkdir()
    dsn = cluster.create(f"lookups_{name}_{context.repetition}")
    with (
        _changing(workspace / "lake", options.lookups_rows) as table,
        service(dsn, workspace, more) as (url, pid),
        ThreadPoolExecutor(options.lookups_readers) as pool,
    ):
        _ask(url, options.lookups_rows, 0.5)  # What reads the lake is loaded, and the table.
        assert table.stdin is not None, "it is a pipe"
        print(file=table.stdin, flush=True)
        before, began = cpu_seconds((pid,)), time.perf_counter()
        readers = [
            pool.submit(_ask, url, options.lookups_rows, options.lookups_seconds)
            for _ in range(options.lookups_readers)
        ]
        found = [milliseconds for reader in readers for milliseconds in reader.result()]
        took, spent = time.perf_counter() - began, cpu_seconds((pid,)) - before
        told, _ = table.communicate("")
        merges = float(told)
    cuts = statistics.quantiles(found, n=100)
    return {
        "lookups_per_s": len(found) / took,
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "max_ms": max(found),
        "merges_per_s": merges / took,
        "server_cpu_us_per_lookup": spent * 1e6 / len(found),
    }


def _ask(url: str, rows: int, seconds: float) -> list[float]:
    """Ask for one row after the other; return how many milliseconds each took."""
    parts, dice, found = urlsplit(url), random.Random(), []
    until = time.perf_counter() + seconds
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        while time.perf_counter() < until:
            key, began = dice.randrange(rows), time.perf_counter()
            connection.request("GET", f"/v1/projections/seen/rows?key={key}")
            answer = json.loads(connection.getresponse().read())
            found.append((time.perf_counter() - began) * 1000)
            if answer.get("rows", [{}])[0].get("id") != key:
                raise SystemExit(f"the row of {key} is not what was answered: {answer}")
    return found


def main(lake: str, rows: str) -> None:
    """Make a table, and change it between two lines of the standard input."""
    table = _Table(Lake.at(Path(lake)), int(rows))
    print(flush=True)
    sys.stdin.readline()
    table.keep_changing()


if __name__ == "__main__":
    main(*sys.argv[1:])
