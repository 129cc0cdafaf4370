"""A store with some events in its lake's log, and what a replay of them looks like elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
from typer.testing import CliRunner

from apps.cli import build
from eventstore.recovery.events import LakeEvents
from kernel.positions import Epoch
from lake.layout import Lake
from lake.table_columns import AVRO_SCHEMAS
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from schemas.registry import MemoryRegistry
from tests.support.lake.archiving import into_the_log
from tests.support.services.http import service_in_thread

_COMMAND = "import sys; from apps.cli import main; sys.exit(main())"


@dataclass(kw_only=True)
class Origin:
    """A store of orders and carts. `events` are what its service showed, by position."""

    dsn: str
    lake: Path
    events: list[dict[str, Any]] = field(default_factory=list)
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)

    def live(self, count: int = 60) -> None:
        """Append events, one by one changed in what they say, and bring them to the log."""
        with service_in_thread(self.dsn, registry=self.registry) as http:
            for n in range(count):
                stream = f"{('order', 'cart')[n % 2]}-{n % 5}"
                body = {
                    "id": str(uuid.UUID(int=n + 1)),
                    "type": ("placed", "shipped")[n % 3 == 0],
                    "data": {"n": n, "text": "ä\u2028"},
                    "metadata": {"by": "kim"} if n % 2 else {},
                    "tags": [f"n:{n % 4}"],
                    "occurred_at": f"2013-01-01T05:00:{n % 60:02}.5+00:00",
                }
                appended(http, stream, body)
            policy = {"max_count": 1_000}
            assert http.put("/v1/streams/order-0/metadata", json=policy).status_code == 200
            self.events = shown(http)
        into_the_log(self.dsn, self.lake)
        self._keep_schemas()

    def _keep_schemas(self) -> None:
        ids = sorted({each["schema_id"] for each in self.events})
        rows = [[1] * len(ids), ids, [self.registry.schema(each) for each in ids]]
        arrays = [pa.array(c, f.type) for c, f in zip(rows, AVRO_SCHEMAS, strict=True)]
        table = pa.table(arrays, schema=AVRO_SCHEMAS)
        path = Lake.at(self.lake).avro_schemas
        ArrowWriter(Tables()).append(path, table, Guard("log/_schemas", Epoch(1)))

    def logged(self) -> list[dict[str, Any]]:
        """Return the rows of the log, by position."""
        parts = LakeEvents(Lake.at(self.lake)).parts()
        return [row for part in parts for row in part.to_pylist()]

    def environment(self, **further: str) -> dict[str, str]:
        """Return the environment in which commands find the lake and nothing else."""
        return {**os.environ, "PENSTOCK_LAKE_PATH": str(self.lake), **further}


def appended(http: httpx.Client, stream: str, *events: Mapping[str, Any]) -> None:
    """Append events to one stream."""
    answer = http.post(f"/v1/streams/{stream}", json={"events": list(events)})
    assert answer.status_code == 201, answer.text


def shown(http: httpx.Client) -> list[dict[str, Any]]:
    """Return all events of a service's store."""
    answer = http.get("/v1/events", params={"limit": 1_000})
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


@contextmanager
def replaying(
    folder: Path, environment: Mapping[str, str], *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Run `penstock replay events …` as a process of its own; it is gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", _COMMAND, "replay", "events", *arguments],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def replayed(environment: Mapping[str, str], *arguments: str) -> dict[str, Any]:
    """Run `penstock replay events … --json` in this process and return the answer.

    Raises what the command raises.
    """
    command = ["replay", "events", *arguments, "--json"]
    done = CliRunner().invoke(build(), command, env=environment)
    if done.exception is not None:
        raise done.exception
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
