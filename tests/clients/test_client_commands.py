"""Commands and entities through the client: the same decider in a workspace and in the fake."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from penstock_client import (
    ABSENT,
    CommandRefused,
    FieldChange,
    IdReused,
    NewEvent,
    NotFound,
    Penstock,
    VersionConflict,
)
from penstock_client.testing import FakeDecider, FakePenstock
from tests.support.services.http import service_in_thread

SOURCE = """
from eventstore.deciders import Command, Decider, Event, Refused

def decide(command, state):
    if command.name == "look":
        return []
    if command.name == "note":
        return [Event("noted", {"by": "us"})]
    if state["seats"] + command.data["seats"] > 3:
        raise Refused("no room")
    return [Event("booked", {"seats": command.data["seats"]})]

def evolve(state, event):
    if event.type == "noted":
        return {**state, "a/b": None}
    return {"seats": state["seats"] + event.data["seats"]}

show = Decider(
    category="show", version=1, commands={"book": None, "look": None, "note": None},
    decide=decide, evolve=evolve, initial_state={"seats": 0},
)
"""


def decide(command: str, data: Mapping[str, Any], state: Any) -> list[NewEvent]:
    if command == "look":
        return []
    if command == "note":
        return [NewEvent(type="noted", data={"by": "us"})]
    if state["seats"] + data["seats"] > 3:
        raise CommandRefused("no room", reason="no room")
    return [NewEvent(type="booked", data={"seats": data["seats"]})]


def evolve(state: Any, event: Mapping[str, Any]) -> Any:
    if event["type"] == "noted":
        return {**state, "a/b": None}
    return {"seats": state["seats"] + event["data"]["seats"]}


@contextmanager
def service(dsn: str, workspace: Path) -> Iterator[Penstock]:
    (workspace / "deciders").mkdir()
    (workspace / "deciders/show.py").write_text(SOURCE)
    with (
        service_in_thread(dsn, workspace=workspace) as http,
        Penstock(str(http.base_url), verify=False) as client,
    ):
        yield client


@pytest.fixture(params=["server", "fake"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Penstock]:
    if request.param == "server":
        with service(request.getfixturevalue("postgres_dsn"), tmp_path) as client:
            yield client
    else:
        decider = FakeDecider(decide=decide, evolve=evolve, initial_state={"seats": 0})
        with FakePenstock(deciders={"show": decider}).client() as client:
            yield client


def test_a_command_becomes_events_and_state(client: Penstock) -> None:
    answer = client.command("show", "1", "book", {"seats": 2})
    assert (answer.stream, answer.version, answer.position) == ("show-1", 0, 1)
    assert [(event.type, event.data) for event in answer.events] == [("booked", {"seats": 2})]
    between = datetime.now(UTC)
    client.command("show", "1", "book", {"seats": 1}, expected_version=0)
    entity = client.entity("show", "1")
    assert (entity.state, entity.version, entity.position) == ({"seats": 3}, 1, 2)
    assert entity.decider_version == 1
    assert client.entity("show", "1", version=0).state == {"seats": 2}
    assert client.entity("show", "1", at=between).version == 0
    assert client.command("show", "1", "look").events == ()


def test_an_entity_tells_which_event_changed_which_field(client: Penstock) -> None:
    for _ in range(3):
        client.command("show", "1", "book", {"seats": 1})
    found = client.explain("show", "1", limit=2)
    assert found.entity == client.entity("show", "1")
    assert (found.before, found.earlier) == ({"seats": 1}, 0)
    told = [(each.event.version, *each.changes) for each in found.events]
    assert told == [
        (number, FieldChange(field="/seats", before=number, after=number + 1)) for number in (1, 2)
    ]
    assert [each.event for each in found.events] == [*client.read_stream("show-1", from_version=1)]
    before = client.explain("show", "1", version=found.earlier)
    assert (before.entity.version, before.before, before.earlier) == (0, {"seats": 0}, None)
    with pytest.raises(NotFound):
        client.explain("show", "2")


def test_a_field_that_was_not_there_is_absent(client: Penstock) -> None:
    client.command("show", "1", "book", {"seats": 1})
    client.command("show", "1", "note", {})
    (noted,) = client.explain("show", "1", limit=1).events
    assert noted.changes == (FieldChange(field="/a~1b", before=ABSENT, after=None),)
    client.command("show", "1", "book", {"seats": 1})
    (booked,) = client.explain("show", "1", limit=1).events
    assert booked.changes == (
        FieldChange(field="/seats", before=1, after=2),
        FieldChange(field="/a~1b", before=None, after=ABSENT),
    )


def test_what_is_refused_leaves_no_trace(client: Penstock) -> None:
    with pytest.raises(CommandRefused) as refused:
        client.command("show", "1", "book", {"seats": 9})
    assert "no room" in refused.value.reason
    with pytest.raises(VersionConflict) as conflict:
        client.command("show", "1", "book", {"seats": 1}, expected_version=7)
    assert conflict.value.status == 412
    with pytest.raises(NotFound):
        client.entity("show", "1")
    with pytest.raises(NotFound):
        client.command("unknown", "1", "book", {})
    assert client.head() == 0


def test_a_deleted_entity_begins_again(client: Penstock) -> None:
    client.command("show", "1", "book", {"seats": 2})
    client.streams.delete("show-1")
    with pytest.raises(NotFound):
        client.entity("show", "1")
    looked = client.command("show", "1", "look")
    assert (looked.version, looked.position, looked.events) == (None, None, ())
    with pytest.raises(VersionConflict) as conflict:
        client.command("show", "1", "book", {"seats": 3}, expected_version=0)
    assert conflict.value.actual is None
    answer = client.command("show", "1", "book", {"seats": 3}, expected_version="no_stream")
    assert answer.version == 1
    assert client.entity("show", "1").state == {"seats": 3}


def test_a_key_makes_all_tries_one_command(client: Penstock) -> None:
    first = client.command("show", "1", "book", {"seats": 1}, idempotency_key="k")
    assert client.command("show", "1", "book", {"seats": 1}, idempotency_key="k") == first
    assert client.head() == 1
    with pytest.raises(IdReused):
        client.command("show", "1", "book", {"seats": 2}, idempotency_key="k")
    with pytest.raises(CommandRefused):
        client.command("show", "1", "book", {"seats": 9}, idempotency_key="other")


def test_the_async_client_sends_commands_too() -> None:
    decider = FakeDecider(decide=decide, evolve=evolve, initial_state={"seats": 0})

    async def body() -> None:
        async with FakePenstock(deciders={"show": decider}).async_client() as client:
            await client.command("show", "1", "book", {"seats": 1})
            assert (await client.entity("show", "1")).state == {"seats": 1}

    asyncio.run(body())
