"""PostgreSQL is killed while the writer stands exactly at each of its failpoints."""

from __future__ import annotations

import asyncio
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from eventstore.postgres.migrate import migrate
from kernel import failpoints
from tests.support.services.http import ServiceProcess
from tests.support.services.waiting import until
from tests.support.store.killing import BODY, kill_postgres, known_type
from tests.support.store.postgres import Cluster


@pytest.fixture
def service(own_cluster: Cluster, tmp_path: Path) -> Iterator[ServiceProcess]:
    dsn = own_cluster.dsn("postgres")
    asyncio.run(migrate(dsn))
    known_type(dsn)
    process = ServiceProcess(dsn, tmp_path)
    yield process
    if not process.ended():
        process.send(signal.SIGCONT)
        process.stop(signal.SIGKILL)


def stands_still(service: ServiceProcess) -> bool:
    assert not service.ended(), service.log.read_text()
    (process,) = (
        child for child in psutil.Process().children() if str(service.port) in _port_of(child)
    )
    return bool(process.status() == psutil.STATUS_STOPPED)


def _port_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("PENSTOCK_SERVICE_PORT", "")
    except psutil.Error:
        return ""


CONDITION: dict[str, Any] = {"query": [{"tags": ["seat:1"]}], "after": 1}


@pytest.mark.parametrize(
    ("failpoint", "condition"),
    [
        (failpoints.APPEND_AFTER_COMMIT, CONDITION),
        *(
            pytest.param(failpoint, condition, marks=pytest.mark.matrix)
            for failpoint, condition in (
                (failpoints.APPEND_AFTER_COMMIT, None),
                (failpoints.APPEND_BEFORE_COMMIT, None),
                (failpoints.APPEND_BEFORE_COMMIT, CONDITION),
            )
        ),
    ],
)
def test_p1_postgres_is_killed_around_the_commit(
    service: ServiceProcess, own_cluster: Cluster, failpoint: str, condition: dict[str, Any] | None
) -> None:
    """The client waits for one answer and gets it: the writer finds out by itself."""
    ids = [str(uuid.uuid4()) for _ in range(2)]
    bodies = [
        {
            "appends": [
                {"stream": "order-1", "events": [{"id": id_, "type": "happened", "data": BODY}]}
            ]
        }
        for id_ in ids
    ]
    answers: list[httpx.Response] = []

    def second() -> None:
        body = bodies[1] if condition is None else bodies[1] | {"condition": condition}
        answers.append(httpx.post(f"{service.url}/v1/append", json=body, timeout=60, verify=False))

    service.start({"PENSTOCK_FAILPOINTS": f"{failpoint}=stop@2"})
    first = httpx.post(f"{service.url}/v1/append", json=bodies[0], timeout=60, verify=False)
    assert first.status_code == 201
    client = threading.Thread(target=second)
    client.start()
    until(lambda: stands_still(service), "the writer stands at the failpoint")
    kill_postgres(own_cluster)
    own_cluster.start()
    service.send(signal.SIGCONT)
    client.join(60)
    # Killed after the commit, the second attempt only finds what the first one has done.
    (answer,) = answers
    assert answer.status_code in (200, 201), answer.text
    assert answer.json()["appends"][0]["first_position"] == 2
    with psycopg.connect(own_cluster.dsn("postgres")) as connection:
        rows = connection.execute(
            "SELECT id::text, position, version FROM es.events ORDER BY position"
        ).fetchall()
    assert rows == [(ids[0], 1, 0), (ids[1], 2, 1)]
    assert service.stop() == 0
