"""Attempts of deliverers: what a sender raises, and what is under way when files change."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from delivery import deliveries
from delivery.config import DeliveryFile
from delivery.deliverer import Deliverer
from delivery.deliveries import Deliveries
from delivery.outcome import Document, Outcome, Sent
from eventstore import workspace_files
from eventstore.groups.model import Delivery, GivenEvents, Settled

FILE = 'kind = "mail"\nhost = "h"\nfrom = "a@b.example"\nto = ["c@d.example"]\nsubject = "s"\n'


class Groups:
    """Groups with one event each, which is given once."""

    def __init__(self) -> None:
        self.settled: list[tuple[str, str]] = []
        self._given: set[str] = set()

    async def create(self, name: str, **_: object) -> bool:
        return True

    async def next(
        self, name: str, *, gone: Callable[[], Awaitable[bool]], **_: object
    ) -> GivenEvents:
        if name not in self._given:
            self._given.add(name)
            event: Any = SimpleNamespace(id=uuid.uuid4(), metadata={})
            given = Delivery(event=event, attempt=1, ack_by=datetime.now(UTC))
            return GivenEvents(deliveries=(given,), caught_up=False)
        while not await gone():
            await asyncio.sleep(0.01)
        return GivenEvents(deliveries=(), caught_up=True)

    async def ack(self, name: str, ids: Sequence[uuid.UUID]) -> Settled:
        self.settled.append((name, "sent"))
        return Settled(done=tuple(ids))

    async def nack(
        self, name: str, ids: Sequence[uuid.UUID], *, reason: str, **_: object
    ) -> Settled:
        self.settled.append((name, reason))
        return Settled(done=tuple(ids))


class Watcher:
    """Counts nothing."""

    def delivered(self) -> None: ...

    def failed(self, reason: str, *, parked: bool) -> None: ...

    def counted(self, delivery: str, outcome: str) -> None: ...


class Gate:
    """A sender whose attempts end when it is opened."""

    def __init__(self) -> None:
        self.sending = False
        self.opened = asyncio.Event()

    async def send(self, message_id: str, document: Document) -> Outcome:
        self.sending = True
        await self.opened.wait()
        return Sent()

    async def close(self) -> None: ...


async def render(event: Any) -> Mapping[str, Any]:
    return {}


async def holds(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def write(workspace: Path, name: str, body: str) -> None:
    (workspace / "deliveries").mkdir(exist_ok=True)
    (workspace / "deliveries" / f"{name}.toml").write_text(f'{FILE}body = "{body}"\n')


def test_what_a_sender_raises_is_an_attempt_in_vain() -> None:
    class Broken:
        async def send(self, message_id: str, document: Document) -> Outcome:
            raise TypeError("no bytes")

        async def close(self) -> None: ...

    async def body() -> None:
        groups: Any = Groups()
        deliverer = Deliverer(
            subscription="shop",
            consumer="c",
            groups=groups,
            sender=Broken(),
            render=render,
            observer=Watcher(),
            concurrency=1,
            max_deliveries=3,
        )
        running = asyncio.create_task(deliverer.run())
        await holds(lambda: bool(groups.settled))
        deliverer.stop()
        await running
        assert groups.settled == [("shop", "TypeError, see the log")]

    asyncio.run(body())


def test_files_that_change_cut_off_nothing_within_its_time_nor_wait_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "_FINISH_S", 0.05)
    monkeypatch.setattr(workspace_files, "_EVERY_S", 0.02)
    names = ("quick", "slow")

    async def body() -> None:
        gates = {name: Gate() for name in names}

        def sender(file: DeliveryFile, workspace: Path) -> Gate:
            return gates[file.name]

        monkeypatch.setattr(deliveries, "_sender", sender)
        groups: Any = Groups()
        for name in names:
            write(tmp_path, name, "as it was")
        made = Deliveries(workspace=tmp_path, groups=groups, render=render, metrics=Watcher())

        def state_of(name: str) -> str:
            return {each.name: each.state for each in made.standings()}[name]

        async with made:
            await holds(lambda: all(gate.sending for gate in gates.values()))
            for name in names:
                write(tmp_path, name, "as it is from now on")
            await holds(lambda: {state_of(name) for name in names} == {"stopped"})
            # Long after what is sent would have been cut off.
            asyncio.get_running_loop().call_later(0.2, gates["quick"].opened.set)
            await holds(lambda: state_of("quick") == "running")
            assert (groups.settled, state_of("slow")) == ([("quick", "sent")], "stopped")
            gates["slow"].opened.set()
            await holds(lambda: state_of("slow") == "running")
            assert groups.settled == [("quick", "sent"), ("slow", "sent")]

    asyncio.run(body())


def test_a_password_that_smtp_cannot_say_stands_still_and_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAIL_PASSWORD", "grün")
    write(tmp_path, "shop", "b")
    with (tmp_path / "deliveries/shop.toml").open("a") as file:
        file.write('user = "kim"\npassword = "env:MAIL_PASSWORD"\n')

    async def body() -> None:
        groups: Any = Groups()
        made = Deliveries(workspace=tmp_path, groups=groups, render=render, metrics=Watcher())
        async with made:
            await holds(lambda: made.standings()[0].state == "stopped")
            reason = made.standings()[0].reason or ""
            assert "must be of ASCII characters" in reason
            assert "ü" not in reason

    asyncio.run(body())
