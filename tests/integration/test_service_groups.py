"""Persistent subscriptions over HTTP."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.services.http import service_in_thread
from tests.support.services.waiting import until
from tests.support.store.postgres import Cluster, database

AT = "/v1/subscriptions"


@pytest.fixture
def http(postgres_dsn: str) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        yield client


@pytest.fixture(scope="module")
def refusing(postgres_cluster: Cluster) -> Iterator[httpx.Client]:
    """One service for all that is refused, with an empty store and a subscription."""
    with database(postgres_cluster) as dsn, service_in_thread(dsn) as client:
        assert client.put(f"{AT}/g", json={}).status_code == 201
        yield client


def append(http: httpx.Client, *streams: str) -> list[str]:
    ids = [str(uuid.uuid4()) for _ in streams]
    for id_, stream in zip(ids, streams, strict=True):
        body = {"events": [{"id": id_, "type": "placed", "data": {"n": 1}, "tags": ["shop:1"]}]}
        assert http.post(f"/v1/streams/{stream}", json=body).status_code == 201
    return ids


def take(http: httpx.Client, name: str = "g", **query: Any) -> list[tuple[str, int]]:
    answer = http.get(f"{AT}/{name}/next", params=query)
    assert answer.status_code == 200, answer.text
    return [(each["event"]["id"], each["attempt"]) for each in answer.json()["events"]]


def post(http: httpx.Client, path: str, **body: Any) -> dict[str, Any]:
    answer = http.post(f"{AT}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_life_of_a_subscription(http: httpx.Client) -> None:
    one, two, three = append(http, "order-1", "order-1", "order-2")
    assert http.put(f"{AT}/g", json={"start": 0, "backoff_s": 0}).status_code == 201
    assert take(http) == [(one, 1), (three, 1)]
    assert post(http, "g/ack", ids=[one]) == {"done": [one], "already": [], "refused": []}
    assert post(http, "g/nack", ids=[three], reason="busy")["done"] == [three]
    assert take(http, consumer="b") == [(two, 1)]
    assert take(http, consumer="b") == [(three, 2)]
    assert post(http, "g/park", ids=[three], reason="no such shop")["done"] == [three]
    (parked,) = http.get(f"{AT}/g/parked").json()["parked"]
    assert (parked["id"], parked["reason"], parked["deliveries"]) == (three, "no such shop", 2)
    shown = http.get(f"{AT}/g").json()
    figures = ("checkpoint", "head", "lag_events", "in_flight", "parked", "redelivered", "state")
    assert [shown[name] for name in figures] == [1, 3, 2, 1, 1, 1, "behind"]
    assert shown["lag_seconds"] > 0
    assert http.get(AT).json()["subscriptions"][0]["name"] == "g"
    assert post(http, "g/replay-parked") == {"replayed": 1, "remaining": 0}
    assert take(http) == [(three, 1)]
    assert http.delete(f"{AT}/g").status_code == 204
    assert http.get(f"{AT}/g").status_code == 404


def test_an_event_comes_whole(http: httpx.Client) -> None:
    (id_,) = append(http, "order-1")
    http.put(f"{AT}/g", json={"start": 0})
    answer = http.get(f"{AT}/g/next").json()
    assert answer["events"][0]["event"] == http.get(f"/v1/events/{id_}").json()
    assert answer["caught_up"] is True


def test_a_consumer_waits_for_its_event(http: httpx.Client) -> None:
    http.put(f"{AT}/g", json={"filter": {"category": "order", "tag": "shop:1"}})
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(take, http, wait=30)
        append(http, "cart-1")
        (id_,) = append(http, "order-1")
        assert waiting.result() == [(id_, 1)]


def test_who_has_left_is_given_nothing(http: httpx.Client) -> None:
    """What was given to nobody would come again after `ack_timeout_s` alone."""
    http.put(f"{AT}/g", json={})
    with socket.create_connection(("127.0.0.1", http.base_url.port)) as consumer:
        consumer.sendall(f"GET {AT}/g/next?wait=60 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: "penstock_waiting_consumers 1.0" in http.get("/metrics").text, "it waits")
    (id_,) = append(http, "order-1")
    until(lambda: "penstock_waiting_consumers 0.0" in http.get("/metrics").text, "it has left")
    assert http.get(f"{AT}/g").json()["in_flight"] == 0
    assert take(http) == [(id_, 1)]


def test_waiting_ends_with_the_service(postgres_dsn: str) -> None:
    with ThreadPoolExecutor() as pool, httpx.Client(verify=False, timeout=60) as other:
        with service_in_thread(postgres_dsn) as http:
            http.put(f"{AT}/g", json={})
            url = f"{http.base_url}{AT}/g/next"
            waiting = pool.submit(other.get, url, params={"wait": 60})
            until(lambda: "penstock_waiting_consumers 1.0" in http.get("/metrics").text, "it waits")
        answer = waiting.result()
        assert answer.json()["events"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "problem"),
    [
        ("PUT", "Bad", {}, 422, "invalid-request"),
        ("PUT", "h", {"start": 99}, 409, "beyond-head"),
        ("PUT", "h", {"start": "soon"}, 422, "invalid-request"),
        ("PUT", "h", {"max_deliveries": 0}, 422, "invalid-request"),
        ("PUT", "h", {"ack_timeout_s": 1e9}, 422, "invalid-request"),
        ("PUT", "h", {"filter": {"colour": "red"}}, 422, "invalid-request"),
        ("PUT", "g", {"filter": {"type": "x"}}, 409, "subscription-differs"),
        ("PUT", "h", {"filter": {"category": "a\x00"}}, 422, "invalid-request"),
        ("PUT", "h", {"filter": {"category": "Orders"}}, 422, "invalid-request"),
        ("PUT", "h", {"filter": {"type": "order.placed.now"}}, 422, "invalid-request"),
        ("PUT", "h", {"filter": {"stream_prefix": "Order-"}}, 422, "invalid-request"),
        ("GET", "no/next", None, 404, "not-found"),
        ("GET", "%00/next", None, 400, "malformed-address"),
        ("GET", "g/next?wait=61", None, 422, "invalid-request"),
        ("GET", "g/next?limit=1001", None, 422, "invalid-request"),
        ("GET", "g/next?consumer=a%20b", None, 422, "invalid-request"),
        ("POST", "g/ack", {"ids": []}, 422, "invalid-request"),
        ("POST", "g/ack", {"ids": ["x"]}, 422, "invalid-request"),
        ("POST", "g/nack", {"ids": [str(uuid.UUID(int=1))]}, 422, "invalid-request"),
        ("DELETE", "no", None, 404, "not-found"),
    ],
)
def test_requests_that_are_refused(
    refusing: httpx.Client, method: str, path: str, body: object, status: int, problem: str
) -> None:
    answer = refusing.request(method, f"{AT}/{path}", json=body)
    assert (answer.status_code, answer.json()["type"]) == (status, problem), answer.text


def test_a_body_that_is_too_large_is_not_read(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn, max_body_bytes=1_000) as http:
        answer = http.post(f"{AT}/g/ack", json={"ids": [str(uuid.uuid4())] * 100})
        assert answer.json()["type"] == "body-too-large"


def test_subscriptions_are_measured(http: httpx.Client) -> None:
    append(http, "order-1", "order-2")
    http.put(f"{AT}/g", json={"start": 0})
    take(http, limit=1)
    text = http.get("/metrics").text
    assert 'penstock_subscription_lag_events{subscription="g"} 2.0' in text
    assert 'penstock_subscription_in_flight{subscription="g"} 1.0' in text
    http.delete(f"{AT}/g")
    assert 'subscription="g"' not in http.get("/metrics").text
