"""The disk fills up, for real: appends are refused by name, nothing is lost, room heals."""

from __future__ import annotations

import asyncio
import os
import pwd
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from eventstore.postgres.migrate import migrate
from lake.space import SpaceGuard
from tests.support.services.http import ServiceProcess, free_port
from tests.support.services.small_disk import fill, small_disk
from tests.support.services.waiting import until
from tests.support.store.killing import known_type
from tests.support.store.postgres import Cluster

MIB = 2**20
DISK_MIB = 320
RESERVE = 16 * MIB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    # PostgreSQL's account has to pass: folders of tests are closed to others.
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.owner() == pwd.getpwuid(os.geteuid()).pw_name:
            folder.chmod(folder.stat().st_mode | 0o011)
    with small_disk(tmp_path / "disk", DISK_MIB) as folder:
        yield folder


@pytest.fixture
def cluster(disk: Path) -> Iterator[Cluster]:
    folder = disk / "postgres"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, pwd.getpwnam("nobody").pw_uid, -1)
    cluster = Cluster(folder=folder, port=free_port())
    cluster.initialise()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def service(cluster: Cluster, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that knows its types; not started. Its workspace is on another disk."""
    dsn = cluster.dsn("postgres")
    asyncio.run(migrate(dsn))
    known_type(dsn)
    process = ServiceProcess(dsn, tmp_path)
    yield process
    if not process.ended():
        process.stop()


def append(http: httpx.Client, text: str) -> tuple[str, httpx.Response]:
    id_ = str(uuid4())
    event = {"id": id_, "type": "happened", "data": {"n": 1, "text": text}}
    return id_, http.post("/v1/streams/order-1", json={"events": [event]})


def stored(cluster: Cluster) -> list[Any]:
    with psycopg.connect(cluster.dsn("postgres")) as connection:
        return connection.execute(
            "SELECT id::text, version FROM es.events ORDER BY position"
        ).fetchall()


def test_appends_stop_at_the_reserve_reads_go_on_and_room_heals(
    service: ServiceProcess, cluster: Cluster, disk: Path
) -> None:
    service.start({"PENSTOCK_STORAGE_MIN_FREE_BYTES": str(RESERVE)})
    with httpx.Client(base_url=service.url, timeout=60, verify=False, trust_env=False) as http:
        first, answer = append(http, "x")
        assert answer.status_code == 201
        filler = fill(disk, leave_bytes=RESERVE // 2)
        until(lambda: append(http, "x")[1].status_code == 507, "it sees the disk")
        refused = append(http, "x")[1].json()
        assert refused["type"] == "storage-full"
        assert refused["min_free_bytes"] == RESERVE
        assert refused["free_bytes"] < RESERVE
        assert http.get("/health/ready").status_code == 503
        assert http.get("/v1/streams/order-1").status_code == 200
        before = len(stored(cluster))
        assert append(http, "x")[1].status_code == 507
        assert len(stored(cluster)) == before, "a refused append leaves no trace"
        filler.unlink()
        until(lambda: append(http, "x")[1].status_code == 201, "there is room again")
    assert stored(cluster)[0] == (first, 0)


@pytest.mark.matrix
def test_p1_p3_a_disk_without_any_room_loses_nothing(
    service: ServiceProcess, cluster: Cluster, disk: Path
) -> None:
    """Without a reserve, PostgreSQL itself says that it cannot write."""
    rng = random.Random(20130101)
    service.start()
    with httpx.Client(base_url=service.url, timeout=60, verify=False, trust_env=False) as http:
        assert append(http, "x")[1].status_code == 201
        with psycopg.connect(cluster.dsn("postgres"), autocommit=True) as connection:
            # A whole segment of log lies ready: it is the table that finds no room.
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("CHECKPOINT")
        known = [id_ for id_, _ in stored(cluster)]
        filler = fill(disk, leave_bytes=2 * MIB)
        for _ in range(60):
            # Nothing that compression could make small.
            id_, answer = append(http, rng.randbytes(50_000).hex())
            if answer.status_code != 201:
                break
            known.append(id_)
        assert (answer.status_code, answer.json()["type"]) == (507, "storage-full"), answer.text
        assert "remedy" in answer.json()
        assert [id_ for id_, _ in stored(cluster)] == known
        filler.unlink()
        id_, answer = append(http, "x")
        assert answer.status_code == 201, "there is room, nobody restarted anything"
    assert stored(cluster) == [(each, version) for version, each in enumerate([*known, id_])]


def test_the_pipeline_pauses_on_the_same_disk_and_goes_on(disk: Path) -> None:
    guard = SpaceGuard(str(disk), reserve_bytes=RESERVE)
    assert guard.shortage() is None
    filler = fill(disk, leave_bytes=RESERVE - MIB)
    shortage = guard.shortage()
    assert shortage is not None
    assert f"{(RESERVE - MIB) // MIB} MiB free at {disk}" in shortage
    filler.unlink()
    assert guard.shortage() is None
