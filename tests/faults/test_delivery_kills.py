"""P10: the one thing that doubles a delivery is a crash between sending and recording."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.store import PostgresEventStore
from kernel import failpoints
from schemas.inference import widened
from tests.support.services.http import ServiceProcess
from tests.support.services.receivers import HttpReceiver, http_receiver, smtp_sink
from tests.support.services.waiting import until

DATA = {"n": 1, "mail": "kim@shop.example"}
RETRY = ["[retry]", "ack_timeout_s = 4"]
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def service(postgres_dsn: str, tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service that knows the type `order.placed`; not started."""

    async def prepare() -> None:
        async with PostgresEventStore(postgres_dsn) as store:
            cache = PostgresSchemaCache(store)
            await cache.keep("order.placed", 1, widened("order.placed", None, DATA))

    asyncio.run(prepare())
    (tmp_path / "deliveries").mkdir()
    process = ServiceProcess(postgres_dsn, tmp_path)
    yield process
    if not process.ended():
        process.stop(signal.SIGKILL)


def environment(failpoint: str | None = None) -> dict[str, str]:
    armed = {"PENSTOCK_FAILPOINTS": f"{failpoint}=kill"} if failpoint else {}
    return {"SHOP_WEBHOOK_SECRET": SECRET, **armed}


def append(service: ServiceProcess, count: int) -> list[str]:
    ids = [str(uuid.uuid4()) for _ in range(count)]
    for number, id_ in enumerate(ids):
        body = {"events": [{"id": id_, "type": "placed", "data": DATA}]}
        try:
            httpx.post(f"{service.url}/v1/streams/order-{number}", json=body, verify=False)
        except httpx.TransportError:
            return ids[:number]
    return ids


def caught_up(service: ServiceProcess) -> bool:
    answer = httpx.get(f"{service.url}/v1/subscriptions/shop", verify=False)
    return answer.status_code == 200 and answer.json()["state"] == "caught-up"


def sent(receiver: HttpReceiver) -> list[str]:
    return [json.loads(each.body)["data"]["id"] for each in receiver.received]


def webhook(tmp_path: Path, url: str) -> None:
    lines = [
        'kind = "webhook"',
        f'url = "{url}"',
        'secret = "env:SHOP_WEBHOOK_SECRET"',
        "start = 0",
        "timeout_s = 2",
        "concurrency = 1",
        *RETRY,
    ]
    (tmp_path / "deliveries/shop.toml").write_text("\n".join(lines))


def test_p10_a_crash_before_the_record_sends_again_under_the_same_id(
    service: ServiceProcess, tmp_path: Path
) -> None:
    with http_receiver() as receiver:
        webhook(tmp_path, receiver.url)
        service.start(environment(failpoints.DELIVER_BEFORE_RECORD))
        (id_,) = append(service, 1)
        until(service.ended, "the failpoint kills the service")
        assert sent(receiver) == [id_]
        service.start(environment())
        until(lambda: caught_up(service), "it is sent again and recorded")
        assert sent(receiver) == [id_, id_]
        assert {each.headers["webhook-id"] for each in receiver.received} == {f"shop.{id_}"}
        assert service.stop() == 0


@pytest.mark.matrix
def test_p10_a_mail_has_the_same_message_id_after_a_crash(
    service: ServiceProcess, tmp_path: Path
) -> None:
    with smtp_sink() as sink:
        lines = [
            'kind = "mail"',
            'host = "127.0.0.1"',
            f"port = {sink.port}",
            'security = "none"',
            'from = "shop@penstock.example"',
            'to = ["{data.mail}"]',
            'subject = "Order"',
            'body = "Thanks."',
            "start = 0",
            "timeout_s = 2",
            *RETRY,
        ]
        (tmp_path / "deliveries/shop.toml").write_text("\n".join(lines))
        service.start(environment(failpoints.DELIVER_BEFORE_RECORD))
        (id_,) = append(service, 1)
        until(service.ended, "the failpoint kills the service")
        service.start(environment())
        until(lambda: caught_up(service), "it is sent again and recorded")
        assert [each["message-id"] for each in sink.messages] == [
            f"<shop.{id_}@penstock.example>"
        ] * 2
        assert service.stop() == 0


@pytest.mark.matrix
def test_p10_kills_at_random_lose_no_delivery(service: ServiceProcess, tmp_path: Path) -> None:
    """Every event arrives; only what was under way at a kill arrives twice."""
    with http_receiver() as receiver:
        webhook(tmp_path, receiver.url)
        ids: list[str] = []
        for _ in range(3):
            service.start(environment())
            before = len(receiver.received)
            ids += append(service, 10)
            until(lambda: len(receiver.received) >= before + 4, "some arrive")  # noqa: B023
            service.stop(signal.SIGKILL)
        service.start(environment())
        until(lambda: caught_up(service), "the rest is delivered", deadline_s=60)
        assert set(sent(receiver)) == set(ids)
        assert len(receiver.received) <= len(ids) + 3, "one at a time: one more per kill"
        assert service.stop() == 0
