"""A projection's changes as events: recorded once, delivered from there, silent where they must."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from apps.settings import Setting, Settings
from lake.layout import Lake
from service.limits import BodyLimits
from tests.support.lake.event_sink import EventWorld
from tests.support.lake.handmade import words
from tests.support.services.http import service_in_thread
from tests.support.services.receivers import HttpReceiver, http_receiver
from tests.support.services.waiting import until

DELIVERY = """
kind = "webhook"
url = "{url}"
secret = "env:SHOP_WEBHOOK_SECRET"
start = 0

[filter]
category = "told"
"""


@pytest.fixture
def receiver() -> Iterator[HttpReceiver]:
    with http_receiver() as found:
        yield found


@pytest.fixture
def world(
    stack: Settings,
    lake: Lake,
    prefix: str,
    postgres_dsn: str,
    tmp_path: Path,
    receiver: HttpReceiver,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[EventWorld]:
    secret = "whsec_" + base64.b64encode(bytes(range(32))).decode()
    monkeypatch.setenv("SHOP_WEBHOOK_SECRET", secret)
    (tmp_path / "deliveries").mkdir()
    (tmp_path / "deliveries/shop.toml").write_text(DELIVERY.format(url=receiver.url))
    with service_in_thread(postgres_dsn, workspace=tmp_path) as service:
        made = EventWorld(stack, lake, prefix, service)
        made.deploy()
        yield made
        made.sinks.close()


def posted(receiver: HttpReceiver) -> list[tuple[str, str]]:
    """Return what the receiver got: stream and type."""
    found = [json.loads(each.body)["data"] for each in receiver.received]
    return [(each["stream"], each["type"]) for each in found]


def delivered(world: EventWorld) -> None:
    def caught_up() -> bool:
        answer = world.service.get("/v1/subscriptions/shop")
        return answer.status_code == 200 and answer.json()["checkpoint"] == len(world.events())

    until(caught_up, "all events are taken by the delivery")


def test_p10_each_change_is_an_event_once_and_only_live_ones_are_delivered(
    world: EventWorld, receiver: HttpReceiver
) -> None:
    world.first_run()
    world.send()
    world.run(words((2, "B"), (3, "c")))
    world.run(words((1, "a")), op="delete")
    world.run(words((1, "again")))
    world.send()
    live = [
        ("told-2", "changed", "B", False),
        ("told-3", "raised", "c", False),
        ("told-1", "cleared", "a", False),
        ("told-1", "raised", "again", False),
    ]
    first = [("told-1", "raised", "a", True), ("told-2", "raised", "b", True)]
    assert world.told() == [*first, *live]
    delivered(world)
    assert sorted(posted(receiver)) == sorted((stream, type_) for stream, type_, *_ in live)
    assert [type_ for stream, type_ in posted(receiver) if stream == "told-1"] == [
        "cleared",
        "raised",
    ]
    about = world.events()[-1]["metadata"]
    assert (about["projection"], about["table_version"], about["epoch"]) == ("report", 4, 4)
    state = world.sinks.documents()["report"]
    assert (state["target"], state["records"], state["rows"]) == ("event:told", 6, 3)
    told = generate_latest(world.exposed).decode()
    for name, value in {"rows": 3, "records": 6, "lag_versions": 0, "lag_seconds": 0}.items():
        assert f'penstock_sink_{name}{{projection="report"}} {value}.0' in told


def test_p10_a_swap_and_a_rollback_are_recorded_and_nothing_of_them_is_delivered(
    world: EventWorld, receiver: HttpReceiver
) -> None:
    world.swap_and_roll_back()
    world.run(words((9, "live")))
    world.send()
    assert world.told()[2:] == [
        ("told-1", "cleared", "a", True),
        ("told-3", "raised", "new", True),
        ("told-1", "raised", "a", True),
        ("told-3", "cleared", "new", True),
        ("told-9", "raised", "live", False),
    ]
    delivered(world)
    assert posted(receiver) == [("told-9", "raised")]


def test_p10_a_service_that_is_away_stops_the_sink_and_it_goes_on_where_it_was(
    world: EventWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.first_run()
    url = world.settings.values["service.url"]
    nowhere = type(url)(value="http://127.0.0.1:1", origin="test")
    world.settings.values["service.url"] = nowhere
    assert not world.sinks.step()
    assert "does not answer" in str(world.sinks.states["report"].error)
    told = generate_latest(world.exposed).decode()
    assert 'penstock_sink_errors_total{projection="report"} 1.0' in told
    world.settings.values["service.url"] = url
    until(lambda: world.sinks.step() or bool(world.events()), "it goes on")
    world.send()
    assert [stream for stream, *_ in world.told()] == ["told-1", "told-2"]


def test_p10_a_service_that_takes_few_events_in_a_request_gets_few(
    stack: Settings, lake: Lake, prefix: str, postgres_dsn: str
) -> None:
    with service_in_thread(postgres_dsn, limits=BodyLimits(events=3)) as service:
        world = EventWorld(stack, lake, prefix, service)
        world.settings.values["service.max_events"] = Setting(value=3, origin="test")
        world.restart()
        world.deploy()
        rows = words(*((number, "a") for number in range(7)))
        world.made.run("report", rows, world.made.epoch(head=1))
        world.send()
        assert sorted(stream for stream, *_ in world.told()) == [f"told-{n}" for n in range(7)]
        world.sinks.close()
