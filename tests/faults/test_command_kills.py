"""The service is killed around the commit of a command; a repeat with its key gets one answer."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest

from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.snapshots import PostgresVersions
from eventstore.postgres.store import PostgresEventStore
from kernel import failpoints
from schemas.registry import RegisteredSchema
from tests.support.services.http import ServiceProcess
from tests.support.services.waiting import until
from tests.support.store.deciding import schema

DECIDERS = "from tests.support.store.deciding import counter\n\ncounters = counter()\n"
ADDED = RegisteredSchema(subject="counter.added", id=1, version=1, schema=schema(by=...))


@pytest.fixture
def service(postgres_dsn: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service with a decider whose event type it knows; not started."""
    (tmp_path / "deciders").mkdir()
    (tmp_path / "deciders" / "counters.py").write_text(DECIDERS)

    async def prepare() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            await PostgresSchemaCache(store).keep(ADDED.subject, ADDED.id, ADDED.schema)
            await PostgresVersions(store).keep([ADDED])

    asyncio.run(prepare())
    process = ServiceProcess(postgres_dsn, tmp_path)
    yield process
    if not process.ended():
        process.stop(signal.SIGKILL)


def stored(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        (count,) = connection.execute("SELECT count(*) FROM es.events").fetchone() or (0,)
    return int(count)


@pytest.mark.parametrize(
    ("failpoint", "committed", "status"),
    [
        pytest.param(failpoints.APPEND_BEFORE_COMMIT, False, 201, marks=pytest.mark.matrix),
        (failpoints.APPEND_AFTER_COMMIT, True, 200),
    ],
)
def test_p1_a_command_killed_around_its_commit_happens_once(
    service: ServiceProcess, postgres_dsn: str, failpoint: str, committed: bool, status: int
) -> None:
    url = f"{service.url}/v1/commands/counter/1/add"
    key = {"idempotency-key": "once"}
    service.start({"PENSTOCK_FAILPOINTS": f"{failpoint}=kill"})
    with pytest.raises(httpx.TransportError):
        httpx.post(url, json={"by": 2}, headers=key, verify=False)
    until(service.ended, "the failpoint kills the service")
    assert stored(postgres_dsn) == committed

    service.start()
    first = httpx.post(url, json={"by": 2}, headers=key, verify=False)
    assert first.status_code == status, first.text
    again = httpx.post(url, json={"by": 2}, headers=key, verify=False)
    assert (again.status_code, again.json()) == (200, first.json())
    assert stored(postgres_dsn) == 1
    entity = httpx.get(f"{service.url}/v1/entities/counter/1", verify=False).json()
    assert entity["state"] == {"total": 2, "steps": [2]}
