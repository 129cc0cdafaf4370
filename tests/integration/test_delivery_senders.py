"""Webhooks and mail against a real receiver: what is sent, and how answers are judged."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from delivery.mail import MailForm, MailSender, MailServer
from delivery.outcome import Hopeless, Outcome, Sent, TryAgain
from delivery.template import Template, Unfilled
from delivery.webhook import WebhookSender, signature, signing_key
from kernel.clock import ManualClock
from kernel.errors import Misconfigured
from tests.support.services.http import free_port
from tests.support.services.receivers import Received, Reply, SmtpSink, http_receiver, smtp_sink
from tests.support.services.waiting import SLOWEST

AT = datetime(2013, 1, 1, 5, 15, tzinfo=UTC)
KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
DOCUMENT: dict[str, Any] = {
    "id": uuid.UUID(int=7),
    "stream": "order-1",
    "category": "order",
    "version": 0,
    "position": 1,
    "type": "placed",
    "data": {"number": 12, "to": "kim@shop.example", "lines": [{"item": "tea"}]},
    "metadata": {},
    "tags": ("shop:1",),
    "occurred_at": AT,
    "recorded_at": AT,
}


def posted(url: str, *, timeout_s: float = 20) -> Outcome:
    async def run() -> Outcome:
        sender = WebhookSender(url=url, key=KEY, timeout_s=timeout_s, clock=ManualClock(AT))
        try:
            return await sender.send("shop.7", DOCUMENT)
        finally:
            await sender.close()

    return asyncio.run(run())


def test_a_webhook_is_signed_and_carries_the_event() -> None:
    with http_receiver() as receiver:
        assert posted(receiver.url) == Sent()
    (request,) = receiver.received
    timestamp = request.headers["webhook-timestamp"]
    assert request.headers["webhook-id"] == "shop.7"
    assert timestamp == str(int(AT.timestamp()))
    mac = hmac.new(KEY, f"shop.7.{timestamp}.".encode() + request.body, hashlib.sha256)
    expected = "v1," + base64.b64encode(mac.digest()).decode()
    assert request.headers["webhook-signature"] == expected
    body = json.loads(request.body)
    assert (body["type"], body["timestamp"]) == ("order.placed", "2013-01-01T05:15:00Z")
    assert body["data"]["data"] == DOCUMENT["data"]


def test_the_signature_of_the_specification() -> None:
    """The example that standardwebhooks.com gives for verifiers."""
    key = signing_key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    assert (
        signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


@pytest.mark.parametrize("secret", ["", "abc", "whsec_", "whsec_!!", "whsec_…", "whsec_QUJD"])
def test_a_secret_has_a_form_and_is_not_shown(secret: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        signing_key(secret)
    assert "QUJD" not in caught.value.message


@pytest.mark.parametrize("url", ["http://[::1/x", "https://shop.example:80x/events"])
def test_an_address_that_is_none_is_said_before_anything_is_sent(url: str) -> None:
    with pytest.raises(Misconfigured, match="the webhook's url cannot be used"):
        WebhookSender(url=url, key=KEY, timeout_s=1)


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (Reply(status=200, body=b"thanks"), Sent()),
        (Reply(status=500, body=b"oops"), TryAgain(reason="HTTP 500: oops")),
        (Reply(status=404), TryAgain(reason="HTTP 404")),
        (Reply(status=410), Hopeless(reason="HTTP 410")),
        (
            Reply(status=503, headers={"retry-after": "7"}),
            TryAgain(reason="HTTP 503", delay=timedelta(seconds=7)),
        ),
        (
            Reply(status=429, headers={"retry-after": "999999999"}),
            TryAgain(reason="HTTP 429", delay=timedelta(days=1)),
        ),
        (
            Reply(status=503, headers={"retry-after": "Tue, 01 Jan 2013 00:00:00 GMT"}),
            TryAgain(reason="HTTP 503"),
        ),
        (
            Reply(status=307, headers={"location": "http://127.0.0.1:1/"}),
            TryAgain(reason="HTTP 307"),
        ),
    ],
)
def test_answers_are_judged(reply: Reply, outcome: Outcome) -> None:
    with http_receiver() as receiver:
        receiver.reply = lambda _request: reply
        assert posted(receiver.url) == outcome
        assert len(receiver.received) == 1


def test_a_long_answer_is_not_read() -> None:
    with http_receiver() as receiver:
        receiver.reply = lambda _request: Reply(status=500, body=b"x" * 50_000_000)
        outcome = posted(receiver.url)
    assert outcome == TryAgain(reason="HTTP 500: " + "x" * 200)


def test_no_answer_and_nobody_there() -> None:
    done = threading.Event()

    def late(_request: Received) -> Reply:
        done.wait(30)
        return Reply()

    with http_receiver() as receiver:
        receiver.reply = late
        try:
            outcome = posted(receiver.url, timeout_s=0.2)
        finally:
            done.set()
    assert outcome == TryAgain(reason="no answer within 0.2 s")
    outcome = posted(f"http://127.0.0.1:{free_port()}/")
    assert isinstance(outcome, TryAgain)
    assert "Connect" in outcome.reason


def mailed(sink: SmtpSink, *, id_: str = "shop.7", **changes: Any) -> Outcome:
    fields = {
        "from": "no-reply@penstock.example",
        "subject": "Order {data.number}",
        "body": "For {data.lines.0.item}\n",
        "to": ["{data.to}"],
        "timeout_s": 20,
        "user": None,
        "password": None,
    }
    given = fields | changes

    async def run() -> Outcome:
        sender = MailSender(
            server=MailServer(
                host="127.0.0.1",
                port=sink.port,
                security="none",
                timeout_s=given["timeout_s"],
                user=given["user"],
                password=given["password"],
            ),
            form=MailForm(
                sender=given["from"],
                recipients=[Template(each, place="to") for each in given["to"]],
                subject=Template(given["subject"], place="subject"),
                body=Template(given["body"], place="body"),
            ),
            concurrency=1,
            clock=ManualClock(AT),
        )
        try:
            return await sender.send(id_, DOCUMENT)
        finally:
            await sender.close()

    return asyncio.run(run())


def test_a_mail_is_filled_from_the_event() -> None:
    id_ = "a" * 63 + "." + str(uuid.UUID(int=7))
    with smtp_sink() as sink:
        assert mailed(sink, id_=id_, subject="Grüße {data.number}\nBcc: x@y.example") == Sent()
    (message,) = sink.messages
    assert message["message-id"] == f"<{id_}@penstock.example>"
    assert message["subject"] == "Grüße 12 Bcc: x@y.example"
    assert (message["to"], message["from"]) == ("kim@shop.example", "no-reply@penstock.example")
    assert message["bcc"] is None
    assert message.get_content().strip() == "For tea"
    assert message["date"].datetime == AT
    assert sink.recipients == [["kim@shop.example"]]


@pytest.mark.parametrize(
    ("begins", "answer", "kind", "reason"),
    [
        ("RCPT", "550 no such box", Hopeless, "kim@shop.example (550)"),
        ("RCPT", "451 later", TryAgain, "kim@shop.example (451)"),
        ("MAIL", "550 not you", TryAgain, "SMTP 550: not you"),
        ("MESSAGE", "554 spam", Hopeless, "SMTP 554: spam"),
        ("MESSAGE", "452 full", TryAgain, "SMTP 452: full"),
        ("DATA", "421 closing", TryAgain, "SMTP 421"),
        ("EHLO", "500 what", Sent, ""),
    ],
)
def test_a_mail_server_says_no(begins: str, answer: str, kind: type[Outcome], reason: str) -> None:
    with smtp_sink() as sink:
        sink.refuse = lambda line: answer if line.upper().startswith(begins) else None
        outcome = mailed(sink)
    assert isinstance(outcome, kind)
    assert isinstance(outcome, Sent) or reason in outcome.reason


def test_a_mail_that_some_refuse_is_not_sent_twice_to_the_others() -> None:
    with smtp_sink() as sink:
        sink.refuse = lambda line: "550 no" if "gone@" in line else None
        outcome = mailed(sink, to=["{data.to}", "gone@shop.example"])
    assert outcome == Hopeless(reason="refused for gone@shop.example; the other recipients have it")
    assert len(sink.messages) == 1


def test_who_is_refused_for_now_is_tried_again_alone() -> None:
    answers = iter(["451 later", "452 too many recipients"])
    with smtp_sink() as sink:
        sink.refuse = lambda line: next(answers, None) if "busy@" in line else None
        outcome = mailed(sink, to=["{data.to}", "busy@shop.example"], timeout_s=4)
    assert outcome == Sent()
    assert sink.recipients == [["kim@shop.example"], ["busy@shop.example"]]
    assert len({message["message-id"] for message in sink.messages}) == 1


def test_who_is_refused_for_now_until_the_time_is_over_is_named() -> None:
    """Another attempt would begin with all of them."""
    refused = {"gone@": "550 no", "busy@": "451 later"}
    with smtp_sink() as sink:
        sink.refuse = lambda line: next((no for box, no in refused.items() if box in line), None)
        to = ["gone@shop.example", "{data.to}", "busy@shop.example"]
        begun = time.monotonic()
        outcome = mailed(sink, to=to, timeout_s=1)
        took_s = time.monotonic() - begun
    assert outcome == Hopeless(
        reason="refused for gone@shop.example; refused for now, again and again, for "
        "busy@shop.example (451); the other recipients have it"
    )
    assert sink.recipients == [["kim@shop.example"]]
    assert took_s < SLOWEST, "times the second that it has"


@pytest.mark.parametrize(
    "changes",
    [
        {"to": ["{data.lines}"]},
        {"to": ["{data.to}, other@shop.example"]},
        {"subject": "{data.absent}"},
        {"body": "{data.number:%H}"},
    ],
)
def test_what_no_mail_can_be_made_of_is_not_tried(changes: dict[str, Any]) -> None:
    with smtp_sink() as sink:
        assert isinstance(mailed(sink, **changes), Hopeless)
        assert sink.messages == []


def test_no_mail_server() -> None:
    assert isinstance(mailed(SmtpSink(port=free_port())), TryAgain)


def test_a_mail_server_that_takes_its_time_has_one_for_the_whole_mail() -> None:
    lines: list[str] = []
    over = threading.Event()

    def slow(line: str) -> None:
        lines.append(line)
        over.wait(0.4)

    with smtp_sink() as sink:
        sink.refuse = slow
        to = [f"box{number}@shop.example" for number in range(30)]
        begun = time.monotonic()
        outcome = mailed(sink, to=to, timeout_s=0.5)
        took_s = time.monotonic() - begun
        over.set()
    assert took_s < SLOWEST, "all of its replies take three times that"
    assert isinstance(outcome, TryAgain)
    assert "DATA" not in [line.upper() for line in lines]
    assert sink.messages == []


def test_a_reply_that_comes_in_drops_does_not_prolong_a_session() -> None:
    def drip() -> None:
        with suppress(OSError):
            connection, _ = server.accept()
            with connection:
                for _ in range(200):
                    connection.sendall(b"2")
                    time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip)
        dripping.start()
        begun = time.monotonic()
        outcome = mailed(SmtpSink(port=server.getsockname()[1]), timeout_s=0.5)
        took_s = time.monotonic() - begun
        dripping.join(30)
    assert isinstance(outcome, TryAgain)
    assert took_s < SLOWEST, "all of the drops take five times that"


def test_what_smtp_cannot_say_is_hopeless() -> None:
    """Only ASCII, and of a password nothing is told."""
    with smtp_sink() as sink:
        outcome = mailed(sink, **{"from": "no-reply@grün.example"})
        assert isinstance(outcome, Hopeless)
        assert "ascii" in outcome.reason
        sink.refuse = lambda line: "250-sink\r\n250 AUTH PLAIN" if line[:4] == "ehlo" else None
        outcome = mailed(sink, user="kim", password="grün")
    assert outcome == Hopeless(reason="no session can be begun: UnicodeEncodeError")
    assert sink.messages == []


@pytest.mark.parametrize(
    "text", ["{nothing}", "{data.__class__!r}", "{", "{data[number]}", "{}", "{version:{data}}"]
)
def test_a_template_that_no_event_fills_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="body: "):
        Template(text, place="body")


def test_a_template_reaches_data_and_nothing_else() -> None:
    text = Template("{data.number:>4}|{occurred_at:%H:%M}|{tags.0}|{{}}", place="body")
    assert text.filled(DOCUMENT) == "  12|05:15|shop:1|{}"
    for path in ("data.__class__", "data.to.upper", "tags.7", "id.int"):
        with pytest.raises(Unfilled, match="the event has no"):
            Template("{" + path + "}", place="body").filled(DOCUMENT)


def test_a_password_is_not_shown() -> None:
    server = MailServer(
        host="h", port=1, security="tls", timeout_s=1, user="u", password=os.urandom(8).hex()
    )
    assert str(server.password) not in repr(server)
