"""The service is killed around the commit; clients retry with the same ids; each happens once."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.store import PostgresEventStore
from kernel import failpoints
from schemas.inference import widened
from tests.support.services.http import ServiceProcess
from tests.support.services.waiting import until

BODY = {"n": 1, "text": "x"}


@pytest.fixture
def service(postgres_dsn: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that knows the type `order.placed`; not started."""

    async def prepare() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            cache = PostgresSchemaCache(store)
            await cache.keep("order.placed", 1, widened("order.placed", None, BODY))

    asyncio.run(prepare())
    process = ServiceProcess(postgres_dsn, tmp_path)
    yield process
    if not process.ended():
        process.stop(signal.SIGKILL)


def stored(dsn: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "SELECT position, id::text, stream, version FROM es.events ORDER BY position"
        ).fetchall()


def placed(*ids: str) -> dict[str, Any]:
    return {"events": [{"id": id_, "type": "placed", "data": BODY} for id_ in ids]}


@pytest.mark.parametrize(
    ("failpoint", "committed", "status"),
    [
        pytest.param(failpoints.APPEND_BEFORE_COMMIT, False, 201, marks=pytest.mark.matrix),
        (failpoints.APPEND_AFTER_COMMIT, True, 200),
    ],
)
def test_p1_a_kill_around_the_commit_and_a_retry(
    service: ServiceProcess, postgres_dsn: str, failpoint: str, committed: bool, status: int
) -> None:
    ids = [str(uuid.uuid4()), str(uuid.uuid4())]
    body = placed(*ids) | {"expected_version": "no_stream"}
    url = f"{service.url}/v1/streams/order-1"
    service.start({"PENSTOCK_FAILPOINTS": f"{failpoint}=kill"})
    with pytest.raises(httpx.TransportError):
        httpx.post(url, json=body, verify=False)
    until(service.ended, "the failpoint kills the service")
    assert bool(stored(postgres_dsn)) is committed

    service.start()
    answer = httpx.post(url, json=body, verify=False)
    assert answer.status_code == status
    assert answer.json() == {
        "stream": "order-1",
        "first_version": 0,
        "last_version": 1,
        "first_position": 1,
        "last_position": 2,
    }
    assert [row[:2] for row in stored(postgres_dsn)] == [(1, ids[0]), (2, ids[1])]
    assert service.stop() == 0


CONDITION = {"query": [{"tags": ["seat:1"]}], "after": 1}
KNOWN = {"expected_version": 0}


IN_ONE_MESSAGE: dict[str, Any] = {"appends": []}
AFTER_A_LOOK = IN_ONE_MESSAGE | {"condition": CONDITION}


@pytest.mark.parametrize(
    ("failpoint", "committed", "extra"),
    [
        (failpoints.APPEND_BEFORE_COMMIT, False, AFTER_A_LOOK),
        pytest.param(
            failpoints.APPEND_AFTER_COMMIT, True, IN_ONE_MESSAGE, marks=pytest.mark.matrix
        ),
        pytest.param(
            failpoints.APPEND_BEFORE_COMMIT, False, IN_ONE_MESSAGE, marks=pytest.mark.matrix
        ),
        pytest.param(failpoints.APPEND_AFTER_COMMIT, True, AFTER_A_LOOK, marks=pytest.mark.matrix),
    ],
)
def test_p1_p3_a_kill_around_the_commit_of_a_busy_writer(
    service: ServiceProcess,
    postgres_dsn: str,
    failpoint: str,
    committed: bool,
    extra: dict[str, Any],
) -> None:
    """The writer knows stream and category: it commits in fewer steps than the first time."""
    first, second, third = (str(uuid.uuid4()) for _ in range(3))
    entries = [
        {"stream": "order-1"} | KNOWN | placed(second),
        {"stream": "order-2"} | placed(third),
    ]
    body = extra | {"appends": entries}
    service.start({"PENSTOCK_FAILPOINTS": f"{failpoint}=kill@2"})
    with httpx.Client(base_url=service.url, timeout=60, verify=False) as http:
        answer = http.post("/v1/streams/order-1", json=placed(first))
        assert answer.status_code == 201
        with pytest.raises(httpx.TransportError):
            http.post("/v1/append", json=body)
    until(service.ended, "the failpoint kills the service")
    assert len(stored(postgres_dsn)) == (3 if committed else 1)

    service.start()
    answer = httpx.post(f"{service.url}/v1/append", json=body, verify=False)
    assert answer.status_code == (200 if committed else 201)
    assert [each["first_position"] for each in answer.json()["appends"]] == [2, 3]
    assert stored(postgres_dsn) == [
        (1, first, "order-1", 0),
        (2, second, "order-1", 1),
        (3, third, "order-2", 0),
    ]
    assert service.stop() == 0


def test_p11_a_writer_that_dies_with_a_fresh_lease_stands_in_nobodys_way(
    service: ServiceProcess, postgres_dsn: str
) -> None:
    with pytest.raises(AssertionError):
        service.start({"PENSTOCK_FAILPOINTS": f"{failpoints.LEASE_AFTER_TAKE}=kill"})
    assert service.stop() == -signal.SIGKILL
    service.start()
    answer = httpx.post(
        f"{service.url}/v1/streams/order-1", json=placed(str(uuid.uuid4())), verify=False
    )
    assert (answer.status_code, len(stored(postgres_dsn))) == (201, 1)
    with psycopg.connect(postgres_dsn) as connection:
        row = connection.execute("SELECT number FROM es.lease").fetchone()
    assert row is not None
    assert row[0] >= 2, "the dead writer's number is not used again"


@pytest.mark.matrix
def test_p1_p2_random_kills_under_load(service: ServiceProcess, postgres_dsn: str) -> None:
    """Six clients append while the service is killed at random; each retries until answered."""
    rng = random.Random(20130101)
    service.start()
    acknowledged: dict[str, dict[str, Any]] = {}
    done = threading.Event()

    def client(number: int) -> None:
        with httpx.Client(base_url=service.url, timeout=60, verify=False) as http:
            for _ in range(40):
                id_ = str(uuid.UUID(int=rng.getrandbits(128), version=4))
                acknowledged[id_] = answered(http, f"order-{number % 3}", id_)

    def answered(http: httpx.Client, stream: str, id_: str) -> dict[str, Any]:
        while not done.wait(0.02):
            try:
                answer = http.post(f"/v1/streams/{stream}", json=placed(id_))
            except httpx.TransportError:
                continue
            if answer.status_code in (200, 201):
                document: dict[str, Any] = answer.json()
                return document
            assert answer.status_code in (429, 503), answer.text
        raise AssertionError("the test ended before the answer came")

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    try:
        for kill in range(1, 4):
            until(lambda: len(acknowledged) >= 50 * kill, f"progress before kill {kill}")  # noqa: B023
            service.stop(signal.SIGKILL)
            service.start()
        for thread in threads:
            thread.join(120)
    finally:
        done.set()
    assert not any(thread.is_alive() for thread in threads)

    rows = stored(postgres_dsn)
    assert [position for position, *_ in rows] == list(range(1, 241))
    assert {id_: (stream, version, position) for position, id_, stream, version in rows} == {
        id_: (answer["stream"], answer["first_version"], answer["first_position"])
        for id_, answer in acknowledged.items()
    }
    for number in range(3):
        versions = [version for *_, stream, version in rows if stream == f"order-{number}"]
        assert versions == list(range(80))


@pytest.mark.matrix
def test_a_stop_commits_what_is_queued(service: ServiceProcess, postgres_dsn: str) -> None:
    service.start()
    answers: list[int] = []

    def client(number: int) -> None:
        with httpx.Client(verify=False) as http:
            for index in range(1000):
                stream = f"{service.url}/v1/streams/order-{number}-{index}"
                try:
                    answers.append(http.post(stream, json=placed(str(uuid.uuid4()))).status_code)
                except httpx.TransportError:
                    return

    threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(answers) > 50, "appends are under way")
    code = service.stop(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert code == 0
    assert answers.count(201) == len(stored(postgres_dsn))
    assert set(answers) <= {201, 503}
