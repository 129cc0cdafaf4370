"""`penstock stream archive` is killed at each of its steps; the next run ends what it began."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from kernel import failpoints
from tests.support.lake.archiving import into_the_log
from tests.support.services.http import service_in_thread

STREAMS = 6
EACH = 20
MAIN = "from apps.cli import main; main()"


@pytest.fixture
def http(postgres_dsn: str, tmp_path: Path) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn, lake=tmp_path / "lake") as client:
        for _ in range(2):
            for number in range(STREAMS):
                events = [{"type": "placed", "data": {"n": n}} for n in range(EACH // 2)]
                client.post(f"/v1/streams/order-{number}", json={"events": events})
        into_the_log(postgres_dsn, tmp_path / "lake")
        for number in range(STREAMS - 1):
            path = f"/v1/streams/order-{number}/metadata"
            client.put(path, json={"truncate_before": EACH - 1})
        yield client


def archive(dsn: str, http: httpx.Client, workspace: Path, **environment: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", MAIN, "stream", "archive", "--batch", "25", "--json"],
        env={
            **os.environ,
            "PENSTOCK_WORKSPACE": str(workspace),
            "PENSTOCK_POSTGRES_DSN": dsn,
            "PENSTOCK_SERVICE_URL": str(http.base_url).rstrip("/"),
            **environment,
        },
        check=False,
        capture_output=True,
        timeout=60,
    ).returncode


def seen(http: httpx.Client) -> bytes:
    events = http.get("/v1/events", headers={"accept": "application/x-ndjson"}).content
    first, *_ = events.split(b"stream_archived")
    return b"\n".join(first.splitlines()[: STREAMS * EACH])


@pytest.mark.parametrize("hit", [1, pytest.param(2, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("failpoint", failpoints.ARCHIVE_STEPS)
def test_p1_a_killed_archiving_is_finished_by_the_next(
    http: httpx.Client, postgres_dsn: str, tmp_path: Path, failpoint: str, hit: int
) -> None:
    before = seen(http)
    armed = f"{failpoint}=kill@{hit}"
    killed = archive(postgres_dsn, http, tmp_path, PENSTOCK_FAILPOINTS=armed)
    assert killed == -9
    assert seen(http) == before
    assert archive(postgres_dsn, http, tmp_path) == 0
    assert seen(http) == before
    with psycopg.connect(postgres_dsn) as connection:
        moved = connection.execute(
            "SELECT (SELECT count(*) FROM es.archived), count(*) FROM es.events"
            " WHERE stream NOT LIKE '%$metadata'"
        ).fetchone()
        positions = connection.execute(
            "SELECT count(*), count(DISTINCT position), max(position),"
            " (SELECT position FROM es.counter) FROM es.recorded"
        ).fetchone()
    left = STREAMS * EACH - (STREAMS - 1) * (EACH - 1)
    assert moved == ((STREAMS - 1) * (EACH - 1), left)
    assert positions is not None
    assert len(set(positions)) == 1
