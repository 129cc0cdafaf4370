"""Deliverers inside a service: files in the workspace, real receivers, a real PostgreSQL."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from eventstore.postgres import connect
from tests.support.services.http import service_in_thread
from tests.support.services.receivers import HttpReceiver, Received, Reply, http_receiver, smtp_sink
from tests.support.services.waiting import until
from tests.support.store.postgres import Cluster

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as found:
        yield found


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_WEBHOOK_SECRET", SECRET)


def webhook(workspace: Path, url: str, *lines: str, name: str = "shop") -> None:
    text = [
        'kind = "webhook"',
        f'url = "{url}"',
        'secret = "env:SHOP_WEBHOOK_SECRET"',
        "start = 0",
        *lines,
    ]
    write(workspace, name, text)


def write(workspace: Path, name: str, lines: list[str]) -> None:
    folder = workspace / "deliveries"
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.toml").write_text("\n".join(lines))


def append(http: httpx.Client, *streams: str, **data: object) -> list[str]:
    ids = [str(uuid.uuid4()) for _ in streams]
    for id_, stream in zip(ids, streams, strict=True):
        body = {"events": [{"id": id_, "type": "placed", "data": data or {"n": 1}}]}
        assert http.post(f"/v1/streams/{stream}", json=body).status_code == 201
    return ids


def subscription(http: httpx.Client, name: str = "shop") -> dict[str, Any]:
    answer = http.get(f"/v1/subscriptions/{name}")
    found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
    return found


def standing(http: httpx.Client, name: str = "shop") -> dict[str, Any]:
    deliveries = http.get("/health/ready").json()["deliveries"]
    found: dict[str, Any] = {each["name"]: each for each in deliveries}[name]
    return found


def caught_up(http: httpx.Client, name: str = "shop") -> bool:
    return subscription(http, name).get("state") == "caught-up"


def ids_of(receiver: HttpReceiver) -> list[str]:
    return [json.loads(each.body)["data"]["id"] for each in receiver.received]


def test_p10_each_event_is_posted_once_with_its_own_id(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    webhook(tmp_path, receiver.url, "[filter]", 'category = "order"')
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        ids = append(http, "order-1", "order-1", "order-2")
        append(http, "cart-1")
        until(lambda: subscription(http).get("checkpoint") == 4, "all is delivered")
        assert Counter(ids_of(receiver)) == Counter(ids)
        assert {each.headers["webhook-id"] for each in receiver.received} == {
            f"shop.{id_}" for id_ in ids
        }
        first = [id_ for id_ in ids_of(receiver) if id_ in ids[:2]]
        assert first == ids[:2], "one stream, one order"
        text = http.get("/metrics").text
        assert 'penstock_deliveries_total{delivery="shop",outcome="sent"} 3.0' in text
        assert 'penstock_delivery_up{delivery="shop"} 1.0' in text
        assert standing(http) == {
            "name": "shop",
            "kind": "webhook",
            "state": "running",
            "reason": None,
        }
        assert SECRET not in text


def test_p10_a_receiver_that_fails_gets_the_event_again_under_the_same_id(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    replies = iter([Reply(status=500, body=b"oops"), Reply(status=301)])
    receiver.reply = lambda _request: next(replies, Reply())
    webhook(tmp_path, receiver.url, "[retry]", "backoff_s = 0.01")
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        (id_,) = append(http, "order-1")
        until(lambda: caught_up(http), "it is delivered in the end")
        assert ids_of(receiver) == [id_] * 3
        assert len({each.headers["webhook-id"] for each in receiver.received}) == 1
        assert subscription(http)["redelivered"] == 2


def test_p10_only_parked_events_are_sent_again_by_their_replay(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    broken = threading.Event()
    broken.set()

    def reply(request: Received) -> Reply:
        bad = json.loads(request.body)["data"]["stream"] == "order-2"
        return Reply(status=400, body=b"no such order") if bad and broken.is_set() else Reply()

    receiver.reply = reply
    webhook(tmp_path, receiver.url, "[retry]", "backoff_s = 0.01", "max_deliveries = 2")
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        _, bad, _ = append(http, "order-1", "order-2", "order-3")
        until(lambda: caught_up(http), "what cannot be delivered is parked")
        (parked,) = http.get("/v1/subscriptions/shop/parked").json()["parked"]
        assert (parked["id"], parked["reason"]) == (bad, "HTTP 400: no such order")
        receiver.received.clear()
        broken.clear()
        assert http.post("/v1/subscriptions/shop/replay-parked").json()["replayed"] == 1
        until(lambda: caught_up(http) and not subscription(http)["parked"], "it is delivered")
        assert ids_of(receiver) == [bad]


def test_p10_reading_history_again_sends_nothing(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    webhook(tmp_path, receiver.url)
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        append(http, "order-1", "order-2")
        until(lambda: caught_up(http), "all is delivered")
        http.get("/v1/events", params={"after": 0})
        http.put("/v1/subscriptions/other", json={"start": 0})
        assert len(http.get("/v1/subscriptions/other/next").json()["events"]) == 2
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        append(http, "order-3")
        until(lambda: caught_up(http) and len(receiver.received) == 3, "the new one is delivered")


def test_p10_a_projection_replay_knows_nothing_of_deliveries() -> None:
    """Whatever a replay of projections imports, nothing of it can send or touch a group."""
    program = (
        "import sys, pkgutil, importlib, replay, projections\n"
        "for package in (replay, projections):\n"
        "    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        importlib.import_module(found.name)\n"
        "print([name for name in sys.modules if name.startswith(\n"
        "    ('eventstore.groups', 'eventstore.postgres.groups', 'delivery', 'smtplib'))])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_mail_is_sent_once_per_event(postgres_dsn: str, tmp_path: Path) -> None:
    with smtp_sink() as sink:
        write(
            tmp_path,
            "welcome",
            [
                'kind = "mail"',
                'host = "127.0.0.1"',
                f"port = {sink.port}",
                'security = "none"',
                'from = "shop@penstock.example"',
                'to = ["{data.mail}"]',
                'subject = "Order {stream}"',
                'body = "Thank you for {data.n} things."',
                "start = 0",
            ],
        )
        with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
            ids = append(http, "order-1", "order-2", mail="kim@shop.example", n=3)
            append(http, "order-3", mail="nobody", n=1)
            until(lambda: caught_up(http, "welcome"), "all is sent or parked")
            assert {each["message-id"] for each in sink.messages} == {
                f"<welcome.{id_}@penstock.example>" for id_ in ids
            }
            assert len(sink.messages) == 2
            (parked,) = http.get("/v1/subscriptions/welcome/parked").json()["parked"]
            assert parked["reason"] == "no mail can be made of it: 'nobody' is no mail address"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["kind ="], "is not valid TOML"),
        (['kind = "fax"'], "kind: "),
        (['kind = "webhook"', 'url = "http://h/"'], "secret: required, and missing"),
        (
            ['kind = "webhook"', 'url = "http://h/"', 'secret = "whsec_inline"'],
            "secret: must match",
        ),
        (
            ['kind = "webhook"', 'url = "http://h/"', 'secret = "env:NOT_SET_ANYWHERE"'],
            "NOT_SET_ANYWHERE is not set",
        ),
        (
            [
                'kind = "webhook"',
                'url = "http://h/"',
                'secret = "env:SHOP_WEBHOOK_SECRET"',
                "timeout_s = 100",
            ],
            "ack_timeout_s must be twice timeout_s",
        ),
    ],
)
def test_a_file_that_is_not_right_stands_still_and_spoils_no_other(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver, lines: list[str], reason: str
) -> None:
    webhook(tmp_path, receiver.url)
    write(tmp_path, "broken", lines)
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        append(http, "order-1")
        until(lambda: caught_up(http), "the other works")
        found = standing(http, "broken")
        assert found["state"] == "stopped"
        assert reason in found["reason"]
        assert "whsec_" not in found["reason"]
        assert 'penstock_delivery_up{delivery="broken"} 0.0' in http.get("/metrics").text


def test_a_subscription_that_is_deleted_stops_its_deliverer(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    webhook(tmp_path, receiver.url)
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        until(lambda: bool(subscription(http)), "the deliverer makes its subscription")
        http.delete("/v1/subscriptions/shop")
        until(lambda: standing(http)["state"] == "stopped", "it stands still")
        assert "no subscription is named 'shop'" in standing(http)["reason"]


def test_a_service_that_stops_finishes_what_it_is_sending(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def slow(_request: Received) -> Reply:
        asked.set()
        answer.wait(30)
        return Reply()

    receiver.reply = slow
    webhook(tmp_path, receiver.url, "timeout_s = 30")
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        append(http, "order-1")
        assert asked.wait(30)
        threading.Timer(0.3, answer.set).start()
    receiver.reply = lambda _request: Reply()
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        assert subscription(http)["state"] == "caught-up"
    assert len(receiver.received) == 1


def test_p10_while_postgresql_is_away_nothing_is_sent_twice(
    own_cluster: Cluster,
    tmp_path: Path,
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connect, "_POOL_TIMEOUT_S", 0.3)
    dsn = own_cluster.dsn("postgres")
    asked, answer = threading.Event(), threading.Event()

    def slow(_request: Received) -> Reply:
        asked.set()
        answer.wait(60)
        return Reply()

    receiver.reply = slow
    webhook(tmp_path, receiver.url, "timeout_s = 60")
    with service_in_thread(dsn, workspace=tmp_path) as http:
        (id_,) = append(http, "order-1")
        assert asked.wait(30)
        own_cluster.stop()
        answer.set()
        until(lambda: "not recorded yet" in (standing(http)["reason"] or ""), "it cannot record")
        own_cluster.start()
        until(lambda: caught_up(http), "it is recorded", deadline_s=60)
        assert ids_of(receiver) == [id_]


@pytest.mark.matrix
def test_two_services_share_one_delivery(
    postgres_dsn: str, tmp_path: Path, receiver: HttpReceiver
) -> None:
    webhook(tmp_path, receiver.url)
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        ids = append(http, *(f"order-{n % 5}" for n in range(10)))
        with service_in_thread(postgres_dsn, workspace=tmp_path, wait_ready=False):
            ids += append(http, *(f"order-{n % 5}" for n in range(20)))
            until(lambda: caught_up(http), "all is delivered")
    assert Counter(ids_of(receiver)) == Counter(ids)
