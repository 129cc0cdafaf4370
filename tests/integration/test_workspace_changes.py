"""Deciders and deliveries follow their files while the service runs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.standstills import of_service
from tests.support.services.http import service_in_thread
from tests.support.services.receivers import HttpReceiver, http_receiver
from tests.support.services.waiting import until

DECIDER = """
import time
from pathlib import Path
from eventstore.deciders import Decider, Event

PRICE = {price}

def decide(command, state):
    if command.entity == "slow":
        Path(__file__).with_name("begun").touch()
        while not Path(__file__).with_name("go_on").exists():
            time.sleep(0.01)
    return [Event("sold", {{"price": PRICE}})]

def evolve(state, event):
    return {{"spent": state["spent"] + event.data["price"], "by": PRICE}}

{name} = Decider(
    category="{category}", version=1, commands={{"buy": None}},
    initial_state={{"spent": 0, "by": 0}}, decide=decide, evolve=evolve, snapshot_every=1,
)
"""
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def decider(workspace: Path, price: int, category: str = "shop") -> Path:
    path = workspace / "deciders" / f"{category}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(DECIDER.format(price=price, category=category, name=category))
    return path


@pytest.fixture
def http(postgres_dsn: str, tmp_path: Path) -> Iterator[httpx.Client]:
    decider(tmp_path, 1)
    with service_in_thread(postgres_dsn, workspace=tmp_path, decider_seconds=30) as client:
        yield client


def buy(http: httpx.Client, id_: str = "1", category: str = "shop") -> int:
    answer = http.post(f"/v1/commands/{category}/{id_}/buy")
    assert answer.status_code == 201, answer.text
    price: int = answer.json()["events"][0]["data"]["price"]
    return price


def health(http: httpx.Client) -> Any:
    return http.get("/health/ready").json()


def categories(http: httpx.Client) -> list[str]:
    return [each["category"] for each in http.get("/v1/deciders").json()["deciders"]]


@pytest.mark.matrix
def test_a_decider_is_changed_added_and_removed(http: httpx.Client, tmp_path: Path) -> None:
    assert buy(http) == 1
    # Of the same size, and within the second in which the file was imported.
    decider(tmp_path, 5)
    until(lambda: buy(http, "2") == 5, "the change is there")
    state = http.get("/v1/entities/shop/1").json()["state"]
    assert state == {"spent": 1, "by": 5}, "a snapshot of other code is left aside"
    decider(tmp_path, 7, "kiosk")
    until(lambda: categories(http) == ["kiosk", "shop"], "the new one is there")
    assert buy(http, category="kiosk") == 7
    (tmp_path / "deciders/kiosk.py").unlink()
    until(lambda: categories(http) == ["shop"], "it is gone")
    assert http.post("/v1/commands/kiosk/1/buy").status_code == 404
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.matrix
def test_a_broken_decider_is_named_and_the_one_before_goes_on(
    http: httpx.Client, tmp_path: Path
) -> None:
    path = decider(tmp_path, 2)
    path.write_text(path.read_text() + "\nnonsense(\n")
    until(lambda: health(http)["deciders"]["state"] == "outdated", "it is noticed")
    (still,) = of_service(health(http))
    assert still.component == "deciders"
    assert f"{path}:" in still.cause
    assert http.get("/health/ready").status_code == 200
    assert buy(http) == 1
    decider(tmp_path, 3)
    until(lambda: health(http)["deciders"]["state"] == "loaded", "it is mended")
    assert of_service(health(http)) == []
    assert buy(http) == 3


def test_a_command_under_way_ends_on_the_code_that_it_began_with(
    http: httpx.Client, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(buy, http, "slow")
        until((tmp_path / "deciders/begun").exists, "it has begun")
        decider(tmp_path, 9)
        until(lambda: buy(http) == 9, "others see the change")
        (tmp_path / "deciders/go_on").touch()
        assert slow.result(30) == 1
    assert buy(http, "slow") == 9


@pytest.fixture
def receivers() -> Iterator[tuple[HttpReceiver, HttpReceiver]]:
    with http_receiver() as one, http_receiver() as other:
        yield one, other


def deliver(workspace: Path, url: str, secret: str = "env:RECEIVER_SECRET") -> Path:
    path = workspace / "deliveries/shop.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'kind = "webhook"\nurl = "{url}"\nsecret = "{secret}"\nstart = 0\n')
    return path


def delivery(http: httpx.Client) -> dict[str, Any]:
    found = {each["name"]: each for each in health(http)["deliveries"]}
    return dict(found.get("shop", {"state": "absent"}))


@pytest.mark.matrix
def test_deliveries_follow_their_files(
    http: httpx.Client,
    tmp_path: Path,
    receivers: tuple[HttpReceiver, HttpReceiver],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RECEIVER_SECRET", SECRET)
    one, other = receivers
    assert delivery(http)["state"] == "absent"
    buy(http)
    path = deliver(tmp_path, one.url)
    until(lambda: len(one.received) == 1, "a new file delivers")
    path.write_text('kind = "webhook"\n')
    until(lambda: delivery(http)["state"] == "outdated", "a broken file is named")
    (still,) = of_service(health(http))
    assert (still.component, still.name) == ("delivery", "shop")
    assert "deliveries/shop.toml: " in still.cause
    buy(http)
    until(lambda: len(one.received) == 2, "it goes on as it was")
    deliver(tmp_path, other.url)
    until(lambda: delivery(http)["state"] == "running", "it is mended")
    buy(http)
    until(lambda: len(other.received) == 1, "the change is there")
    path.unlink()
    until(lambda: delivery(http)["state"] == "absent", "a file that is gone delivers nothing")
    assert (len(one.received), len(other.received)) == (2, 1)


@pytest.mark.matrix
def test_a_stopped_delivery_is_named_and_tried_again_when_its_file_is_saved(
    http: httpx.Client, tmp_path: Path, receivers: tuple[HttpReceiver, HttpReceiver]
) -> None:
    path = deliver(tmp_path, receivers[0].url, secret="file:shop.secret")
    until(lambda: delivery(http)["state"] == "stopped", "the secret is missing")
    (still,) = of_service(health(http))
    assert (still.component, still.name) == ("delivery", "shop")
    assert "the secret's file shop.secret cannot be read" in still.cause
    (tmp_path / "shop.secret").write_text(SECRET)
    path.touch()
    buy(http)
    until(lambda: len(receivers[0].received) == 1, "it delivers")
