"""Two services, one writer: it is killed, or sleeps through its lease, while clients write."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import psycopg
import pytest

from tests.support.services.http import ServiceProcess
from tests.support.services.waiting import until
from tests.support.store.killing import BODY, MortalDatabase, known_type
from tests.support.store.postgres import Cluster
from tests.torture import progress
from tests.torture.__main__ import summary
from tests.torture.options import Options
from tests.torture.run import torture


def asked(dsn: str, statement: str) -> tuple[object, ...]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return tuple(row)


@pytest.mark.matrix
def test_p1_p2_the_writer_is_killed_while_clients_write(
    own_cluster: Cluster, tmp_path: Path
) -> None:
    options = Options(
        events=1_000,
        writers=8,
        readers=2,
        services=2,
        kills=("writer",),
        kill_every_s=0.5,
        least_kills=2,
        streams_read=10,
        folder=tmp_path,
    )
    database = MortalDatabase(cluster=own_cluster)
    verdict = asyncio.run(torture(options, database, say=progress.silent))
    print(summary(verdict))
    assert verdict.clean, json.dumps(verdict.document(), indent=2)
    healed = [kill.healed_s for kill in verdict.board.kills if kill.healed_s is not None]
    print("take-overs in s:", healed)
    (number,) = asked(database.dsn, "SELECT number FROM es.lease")
    assert int(str(number)) > len(healed) >= 2, "each kill made another writer"


@pytest.fixture
def pair(postgres_dsn: str, tmp_path: Path) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    """Two services on one store; the first one is the writer, the second is started by the test."""
    known_type(postgres_dsn)
    services = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        services.append(ServiceProcess(postgres_dsn, folder))
    first, second = services
    first.start()
    yield first, second
    for service in services:
        if not service.ended():
            service.send(signal.SIGCONT)
            service.stop(signal.SIGKILL)


def append(http: httpx.Client, service: ServiceProcess, expected: int | str) -> httpx.Response:
    """Append one event, again with the same id for as long as there is no certain answer."""
    event = {"id": str(uuid4()), "type": "happened", "data": BODY}
    body = {"expected_version": expected, "events": [event]}
    while True:
        answer = http.post(f"{service.url}/v1/streams/order-1", json=body)
        if answer.status_code != 503:
            return answer


def test_p2_a_writer_that_wakes_after_its_lease_commits_nothing(
    pair: tuple[ServiceProcess, ServiceProcess], postgres_dsn: str
) -> None:
    first, second = pair
    stale: list[httpx.Response] = []
    with httpx.Client(timeout=60, verify=False, trust_env=False) as http:
        assert append(http, first, "no_stream").status_code == 201
        first.send(signal.SIGSTOP)
        # Its connection lives, and with it the lock that says so: only time tells that it is gone.
        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute("UPDATE es.lease SET expires_at = clock_timestamp()")
        second.start()
        assert append(http, second, 0).status_code == 201
        client = threading.Thread(target=lambda: stale.append(append(http, first, "any")))
        client.start()
        first.send(signal.SIGCONT)

        def refused() -> bool:
            ready = http.get(f"{first.url}/health/ready")
            return ready.status_code == 503 and "is the writer now" in ready.text

        until(refused, "the first service knows that it is not the writer")
        assert append(http, second, 1).status_code == 201, "the first one has committed nothing"
        second.stop()
        client.join(60)
        until(
            lambda: http.get(f"{first.url}/health/ready").status_code == 200,
            "the first service is the writer again",
        )
        assert append(http, first, 3).status_code == 201
    (answer,) = stale
    assert (answer.status_code, answer.json()["first_position"]) == (201, 4)
    assert asked(
        postgres_dsn, "SELECT array_agg(position ORDER BY version)::text FROM es.events"
    ) == ("{1,2,3,4,5}",)
