"""The page on deliveries is followed: its files, its receiver, its commands."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.docs.console import commands, run
from tests.docs.markdown import blocks
from tests.support.services.http import service_in_thread
from tests.support.services.receivers import http_receiver, smtp_sink
from tests.support.services.waiting import until

PAGE = ROOT / "docs/how-to/deliver-events.md"
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def marked(argument: str) -> list[str]:
    return [block.text for block in blocks(PAGE) if block.mark == ("run", argument)]


def written(workspace: Path, name: str, **values: str) -> None:
    """Write a file of the page, with the receivers of this test in place of the examples'."""
    (text,) = marked(name)
    for old, new in values.values():
        assert old in text, old
        text = text.replace(old, new)
    (workspace / name).parent.mkdir(exist_ok=True)
    (workspace / name).write_text(text)


def test_the_page_delivers(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_WEBHOOK_SECRET", SECRET)
    (code,) = marked("receiver")
    namespace: dict[str, Callable[[dict[str, str], bytes, str], bool]] = {}
    exec(code, namespace)
    with http_receiver() as receiver, smtp_sink() as sink:
        written(tmp_path, "deliveries/shop.toml", url=("https://shop.example/events", receiver.url))
        written(
            tmp_path,
            "deliveries/thanks.toml",
            host=("smtp.shop.example", "127.0.0.1"),
            port=("port = 587", f"port = {sink.port}"),
            security=('"starttls"', '"none"'),
            user=('user = "shop"\n', ""),
            password=('password = "env:SHOP_MAIL_PASSWORD"\n', ""),
        )
        with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
            until(
                lambda: len(http.get("/v1/subscriptions").json()["subscriptions"]) == 2,
                "both have begun",
            )
            data = {"total": 12.5, "mail": "kim@shop.example"}
            body = {"events": [{"type": "placed", "data": data}]}
            assert http.post("/v1/streams/order-1", json=body).status_code == 201
            until(
                lambda: all(
                    each["state"] == "caught-up"
                    for each in http.get("/v1/subscriptions").json()["subscriptions"]
                ),
                "both have delivered",
            )
            (request,) = receiver.received
            assert json.loads(request.body)["data"]["data"] == data
            assert namespace["verified"](dict(request.headers), request.body, SECRET)
            assert not namespace["verified"](dict(request.headers), request.body + b" ", SECRET)
            (message,) = sink.messages
            assert message["subject"] == "Your order order-1"
            assert "Thank you for 12.50 at " in message.get_content()
            environment = {
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PENSTOCK_SERVICE_URL": str(http.base_url),
            }
            for block in marked("delivery"):
                for command in commands(block):
                    run(command, folder=tmp_path, environment=environment)
