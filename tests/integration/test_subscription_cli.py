"""`penstock subscription …` against a running service."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from apps.cli import build
from kernel.errors import NotFound
from tests.support.services.http import service_in_thread


@pytest.fixture
def http(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    with service_in_thread(postgres_dsn) as client:
        monkeypatch.setenv("PENSTOCK_SERVICE_URL", str(client.base_url))
        yield client


def run(*arguments: str) -> Result:
    return CliRunner().invoke(build(), ["subscription", *arguments])


def answered(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_the_life_of_a_subscription(http: httpx.Client) -> None:
    id_ = str(uuid.uuid4())
    body = {"events": [{"id": id_, "type": "placed", "data": {"n": 1}}]}
    assert http.post("/v1/streams/order-1", json=body).status_code == 201
    made = answered("create", "shop", "--category", "order", "--start", "0", "--ack-timeout", "9")
    assert (made["started_after"], made["ack_timeout_s"]) == (0, 9.0)
    assert made["filter"]["category"] == "order"
    assert len(http.get("/v1/subscriptions/shop/next").json()["events"]) == 1
    parked = {"ids": [id_], "reason": "no such shop"}
    assert http.post("/v1/subscriptions/shop/park", json=parked).json()["done"] == [id_]

    shown = run("show", "shop").output
    assert "category order" in shown
    assert "no such shop" in shown
    assert answered("show", "shop")["parked_events"][0]["id"] == id_
    assert "caught-up" in run("list").output
    assert answered("list")["subscriptions"][0]["parked"] == 1
    assert answered("replay-parked", "shop", id_) == {"replayed": 1, "remaining": 0}
    assert "0 are given again" in run("replay-parked", "shop").output

    refused = run("delete", "shop")
    assert refused.exit_code == 3
    assert "penstock subscription delete shop --yes" in refused.output
    assert answered("delete", "shop", "--yes") == {"name": "shop", "deleted": True}
    assert isinstance(run("show", "shop").exception, NotFound)


def test_a_start_is_a_position_or_the_end(http: httpx.Client) -> None:
    assert answered("create", "shop")["started_after"] == 0
    assert "is no position" in str(run("create", "other", "--start", "soon").exception)
