"""Starting, stopping, guarding: what an operator meets."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from eventstore.postgres import connect
from eventstore.postgres.connect import Connection, Pool
from service import reads
from tests.support.services.http import free_port, service_in_thread
from tests.support.services.waiting import until
from tests.support.store.postgres import Cluster

EVENT = {"events": [{"type": "placed", "data": {"total": 1}}]}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Wait for PostgreSQL for a moment only, and note what it is asked for."""
    monkeypatch.setattr(connect, "_POOL_TIMEOUT_S", 0.3)
    asked: list[str] = []
    lend = Pool.lend

    def noted(pool: Pool, doing: str) -> AbstractAsyncContextManager[Connection]:
        asked.append(doing)
        return lend(pool, doing)

    monkeypatch.setattr(Pool, "lend", noted)
    return asked


def test_the_token_guards_every_route_but_health(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn, token="correct horse") as http:
        assert http.post("/v1/streams/order-1", json=EVENT).status_code == 201
        for header in ("", "Bearer wrong", "Bearer correct", "correct horse", "Bearer ü"):
            headers = {"authorization": header.encode("latin-1")}
            for method, path in (
                ("POST", "/v1/streams/order-1"),
                ("POST", "/v1/append"),
                ("GET", "/v1/events"),
                ("GET", "/metrics"),
                ("GET", "/openapi.json"),
                ("GET", "/nothing"),
            ):
                refused = http.request(method, path, headers=headers, json=EVENT)
                assert (refused.status_code, refused.json()["type"]) == (401, "unauthorized")
                assert refused.headers["www-authenticate"] == "Bearer"
            assert http.get("/health/live", headers=headers).status_code == 200
            assert http.get("/health/ready", headers=headers).status_code == 200
        assert http.get("/v1/events").json()["head"] == 1


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        *(
            pytest.param(h, marks=pytest.mark.matrix)
            for h in ("::", "192.0.2.1", "example.invalid")
        ),
    ],
)
def test_a_public_address_without_a_token_refuses_to_start(tmp_path: Path, host: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PENSTOCK_TOKEN"}
    ended = subprocess.run(
        [sys.executable, "-m", "apps.service", "--workspace", tmp_path],
        env=environment
        | {
            "PENSTOCK_SERVICE_HOST": host,
            "PENSTOCK_SERVICE_PORT": str(free_port()),
            "PENSTOCK_POSTGRES_DSN": "postgresql://127.0.0.1:1/none",
            "PENSTOCK_REGISTRY_URL": "http://127.0.0.1:1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert f"service.host {host} can be reached by others" in ended.stderr
    assert "fix: Set PENSTOCK_TOKEN" in ended.stderr


def test_a_nearly_full_disk_stops_appends_only(postgres_dsn: str, tmp_path: Path) -> None:
    with service_in_thread(
        postgres_dsn, workspace=tmp_path, min_free_bytes=2**62, wait_ready=False
    ) as http:
        until(lambda: http.get("/v1/events").status_code == 200, "reads are answered")
        refused = http.post("/v1/streams/order-1", json=EVENT)
        assert (refused.status_code, refused.json()["type"]) == (507, "storage-full")
        assert "storage.min_free_bytes" in refused.json()["remedy"]
        assert refused.json()["min_free_bytes"] == 2**62
        ready = http.get("/health/ready")
        assert ready.status_code == 503
        assert "kept in reserve" in ready.json()["reasons"][0]["reason"]
        assert http.get("/v1/events").json()["head"] == 0


@pytest.mark.matrix
def test_it_answers_before_postgresql_does(own_cluster: Cluster) -> None:
    own_cluster.stop()
    with service_in_thread(own_cluster.dsn("postgres"), wait_ready=False) as http:
        assert http.get("/health/live").status_code == 200
        assert http.get("/health/ready").status_code == 503
        refused = http.post("/v1/streams/order-1", json=EVENT)
        assert (refused.status_code, refused.json()["type"]) == (503, "unavailable")
        assert refused.headers["retry-after"] == "1"
        assert "penstock_up 0.0" in http.get("/metrics").text
        own_cluster.start()
        until(lambda: http.get("/health/ready").status_code == 200, "it gets ready by itself")
        assert http.post("/v1/streams/order-1", json=EVENT).status_code == 201


@pytest.mark.matrix
def test_a_login_that_lost_its_role_is_named_and_gets_it_back(
    postgres_dsn: str, asked: list[str]
) -> None:
    tenant = postgres_dsn.replace("postgres@", "forgotten@")
    with psycopg.connect(postgres_dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS forgotten")
        admin.execute("CREATE ROLE forgotten LOGIN IN ROLE penstock_service")
        with service_in_thread(tenant) as http:
            assert http.post("/v1/streams/order-1", json=EVENT).status_code == 201
            admin.execute("REVOKE penstock_service FROM forgotten")
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'forgotten'"
            )
            until(
                lambda: "GRANT penstock_service TO" in http.get("/health/ready").text,
                "the cause and what to do are told",
            )
            assert "permission denied to set role" in http.get("/health/ready").text
            admin.execute("GRANT penstock_service TO forgotten")
            until(
                lambda: http.post("/v1/streams/order-1", json=EVENT).status_code == 201,
                "the service goes on by itself",
            )


def test_it_comes_back_with_postgresql(own_cluster: Cluster, asked: list[str]) -> None:
    with service_in_thread(own_cluster.dsn("postgres")) as http:
        assert http.post("/v1/streams/order-1", json=EVENT).status_code == 201
        own_cluster.stop()
        until(lambda: http.get("/health/ready").status_code == 503, "it says that it is not ready")
        assert http.get("/v1/events").status_code == 503
        # Each question waits for seconds: a probe that asked a second one would be given up.
        for path in ("/health/ready", "/metrics"):
            asked.clear()
            http.get(path)
            assert len(asked) == 1, path
        own_cluster.start()
        until(lambda: http.get("/health/ready").status_code == 200, "it is ready again")
        assert http.post("/v1/streams/order-1", json=EVENT).json()["first_version"] == 1


def test_metrics_count_what_happened(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http:
        two = {"events": EVENT["events"] * 2}
        http.post("/v1/streams/order-1", json=two)
        http.post("/v1/streams/order-1", json=EVENT)
        http.post("/v1/streams/order-1", json=EVENT | {"expected_version": 7})
        http.get("/v1/streams/order-none")
        lines = http.get("/metrics").text.splitlines()
    for line in (
        "penstock_appends_total 2.0",
        "penstock_events_appended_total 3.0",
        "penstock_append_commit_events_count 2.0",
        "penstock_append_commit_events_sum 3.0",
        "penstock_append_seconds_count 2.0",
        "penstock_append_queue_events 0.0",
        "penstock_head_position 3.0",
        "penstock_subscribers 0.0",
        "penstock_up 1.0",
        'penstock_refusals_total{type="version-conflict"} 1.0',
        'penstock_refusals_total{type="not-found"} 1.0',
    ):
        assert line in lines


def test_a_fault_of_ours_is_counted_once(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> int:
        raise RuntimeError("no")

    monkeypatch.setattr(reads, "page_size", failing)
    with service_in_thread(postgres_dsn) as http:
        answer = http.get("/v1/events")
        assert (answer.status_code, answer.json()["type"]) == (500, "internal")
        assert answer.headers["content-type"] == "application/problem+json"
        # Not by the same connection: what fails unforeseen ends it.
        metrics = httpx.get(f"{http.base_url}/metrics", verify=False).text
        assert 'penstock_refusals_total{type="internal"} 1.0' in metrics.splitlines()


def test_a_snapshot_that_stays_open_is_seen_and_named(postgres_dsn: str) -> None:
    with (
        service_in_thread(postgres_dsn, old_snapshot_s=0.3) as http,
        closing(psycopg.connect(postgres_dsn, application_name="forgotten")) as connection,
        psycopg.connect(postgres_dsn, autocommit=True) as administrator,
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1")

        def health() -> dict[str, Any]:
            answer = http.get("/health/ready")
            assert answer.status_code == 200
            return dict(answer.json())

        until(lambda: health()["status"] == "degraded", "it is old")
        lines = http.get("/metrics").text.splitlines()
        (age,) = [x for x in lines if x.startswith("penstock_oldest_snapshot_seconds ")]
        assert float(age.split()[1]) >= 0.3
        found = health()["old_snapshot"]
        assert "(forgotten)" in found["holder"]
        administrator.execute(found["ended_by"])
        until(lambda: health()["status"] == "ready", "it is over")


def test_it_works_with_the_rights_of_its_role(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http, psycopg.connect(postgres_dsn) as connection:
        http.post("/v1/streams/order-1", json=EVENT)
        connection.execute("REVOKE INSERT ON es.events FROM penstock_service")
        connection.commit()
        refused = http.post("/v1/streams/order-1", json=EVENT)
        assert (refused.status_code, refused.json()["type"]) == (500, "misconfigured")
        connection.execute("GRANT INSERT ON es.events TO penstock_service")
        connection.commit()
        assert http.post("/v1/streams/order-1", json=EVENT).status_code == 201


def test_a_client_that_leaves_early_changes_nothing(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http:
        with (
            httpx.Client(base_url=http.base_url, timeout=0.000_1, verify=False) as hasty,
            pytest.raises(httpx.TimeoutException),
        ):
            hasty.post("/v1/streams/order-1", json=EVENT)
        assert http.post("/v1/streams/order-2", json=EVENT).status_code == 201


@pytest.mark.matrix
def test_a_service_that_is_not_the_writer_says_so_soon(postgres_dsn: str) -> None:
    """It does not hold appends for as long as it would for a database that restarts."""
    body = {"events": [{"type": "placed", "data": {"n": 1}}]}
    with service_in_thread(postgres_dsn) as writer:
        assert writer.post("/v1/streams/order-1", json=body).status_code == 201
        with service_in_thread(postgres_dsn, wait_ready=False, standby_s=0.1) as other:
            until(lambda: "is the writer now" in other.get("/health/ready").text, "it stands by")
            refused = other.post("/v1/streams/order-1", json=body, timeout=8)
            assert (refused.status_code, refused.json()["type"]) == (503, "unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            assert "is the writer now" in refused.json()["detail"]
            assert other.get("/v1/streams/order-1").json()["version"] == 0
