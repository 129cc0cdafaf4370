"""Commands over a store in memory: conflicts, keys, what decide may give back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from eventstore.deciders import Command, Event, Refused
from eventstore.deciders.decided_events import DecidedLimits, decided
from eventstore.deciders.handling import event_id
from eventstore.policies import StreamPolicies
from eventstore.store import EventPage
from kernel.errors import (
    DeciderFailed,
    IdReused,
    NotFound,
    PenstockError,
    VersionConflict,
)
from kernel.positions import Version
from schemas.records import RecordedEvent
from tests.support.store.deciding import STREAM, Count, World, add, counter, decide, world

NO_OFFSET = datetime(2013, 1, 1, tzinfo=UTC).replace(tzinfo=None)


def in_world(test: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with world(**options) as made:
            await test(made)

    asyncio.run(run())


async def events_of(made: World) -> list[RecordedEvent]:
    page = await made.store.read_stream(STREAM, from_version=None, direction="forward", limit=99)
    return list(page.events)


def test_a_conflict_is_decided_again_on_the_new_state() -> None:
    rivals = iter([-3])
    seen: list[int] = []

    async def check(made: World) -> None:
        loop = asyncio.get_running_loop()

        def slow(command: Command, state: Count) -> Any:
            seen.append(state.total)
            for by in rivals:
                # Somebody else is quicker, between the state and the append.
                asyncio.run_coroutine_threadsafe(made.append({"by": by}), loop).result(30)
            return decide(command, state)

        await made.append({"by": 5})
        handled = await made.handler(counter(decide=slow)).handle(add(-2))
        assert handled.version == 2
        assert seen == [5, 2]

    in_world(check)


def test_the_new_state_may_be_refused() -> None:
    async def check(made: World) -> None:
        loop = asyncio.get_running_loop()
        rivals = iter([-5])

        def slow(command: Command, state: Count) -> Any:
            for by in rivals:
                asyncio.run_coroutine_threadsafe(made.append({"by": by}), loop).result(30)
            return decide(command, state)

        await made.append({"by": 5})
        with pytest.raises(Refused, match="below zero"):
            await made.handler(counter(decide=slow)).handle(add(-2))
        assert len(await events_of(made)) == 2

    in_world(check)


def test_retries_end() -> None:
    tries = 0

    async def check(made: World) -> None:
        loop = asyncio.get_running_loop()

        def unlucky(command: Command, state: Count) -> Any:
            nonlocal tries
            tries += 1
            asyncio.run_coroutine_threadsafe(made.append({"by": 1}), loop).result(30)
            return decide(command, state)

        with pytest.raises(VersionConflict):
            await made.handler(counter(decide=unlucky), attempts=4).handle(add(1))
        assert tries == 4
        assert len(await events_of(made)) == 4

    in_world(check)


def test_p1_a_crash_after_the_commit_is_found_by_the_key() -> None:
    """The events are there, the answer never came: the repeat gets it, and appends nothing."""

    async def check(made: World) -> None:
        handled = await made.handler(counter()).handle(add(2, key="k"))
        await made.append({"by": 1})
        again = await made.handler(counter()).handle(add(2, key="k"))
        assert again.repeated
        assert (again.events, again.version) == (handled.events, 0)
        assert [event.id for event in again.events] == [event_id("k", 0)]
        with pytest.raises(IdReused, match="another command"):
            await made.handler(counter()).handle(add(3, key="k"))

    in_world(check)


def thrice(command: Command, state: Count) -> list[Event]:
    return [Event("added", {"by": 1})] * 3


def test_the_events_of_a_command_are_told_whatever_its_stream_shows_by_then() -> None:
    async def check(made: World) -> None:
        handler = made.handler(counter(decide=thrice))
        policies = StreamPolicies(made.store, made.intake)
        await made.append({"by": 1})
        await policies.set(STREAM, truncate_before=None, max_age_s=None, max_count=1)
        handled = await handler.handle(add(1, key="k"))
        assert [event.version for event in handled.events] == [1, 2, 3]
        await made.append({"by": 1})
        for before in (2, 3, None):
            if before is None:
                await policies.delete(STREAM, for_good=False)
            else:
                await policies.set(STREAM, truncate_before=before, max_age_s=None, max_count=None)
            again = await handler.handle(add(1, key="k"))
            assert again.repeated
            assert (again.version, again.position) == (handled.version, handled.position)
            assert again.events == handled.events

    in_world(check)


def test_the_events_of_a_command_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(made: World) -> None:
        asked: list[int] = []
        read_all = made.store.read_all

        async def noted(*, after: int, **more: Any) -> EventPage:
            asked.append(after)
            return await read_all(after=after, **more)

        monkeypatch.setattr(made.store, "read_all", noted)
        many = counter(decide=lambda command, state: [Event("added", {"by": 1})] * 150)
        handled = await made.handler(many).handle(add(1, key="k"))
        assert asked == [0]
        again = await made.handler(many).handle(add(1, key="k"))
        assert again.events == handled.events
        assert asked == [0, 1, 101, 150]

    in_world(check)


def test_a_refused_command_is_decided_anew() -> None:
    async def check(made: World) -> None:
        handler = made.handler(counter())
        with pytest.raises(Refused):
            await handler.handle(add(-1, key="k"))
        await made.append({"by": 1})
        assert not (await handler.handle(add(-1, key="k"))).repeated

    in_world(check)


def test_p3_an_expected_version_is_checked_before_anything_is_decided() -> None:
    decided: list[Command] = []

    async def check(made: World) -> None:
        def noted(command: Command, state: Count) -> Any:
            decided.append(command)
            return decide(command, state)

        handler = made.handler(counter(decide=noted))
        await made.append({"by": 1})
        for expected in (Version(1), "no_stream"):
            with pytest.raises(VersionConflict) as conflict:
                await handler.handle(add(1, expected=expected))
            assert conflict.value.fields["actual"] == 0
        assert decided == []
        await handler.handle(add(1, expected=Version(0)))
        await handler.handle(add(1, expected="stream_exists"))
        assert len(await events_of(made)) == 3

    in_world(check)


def test_decide_learns_who_and_when() -> None:
    seen: list[Command] = []

    async def check(made: World) -> None:
        def noted(command: Command, state: Count) -> Any:
            seen.append(command)
            return []

        await made.handler(counter(decide=noted)).handle(add(1))
        assert (seen[0].entity, seen[0].name) == ("1", "add")
        assert seen[0].at.tzinfo is not None

    in_world(check)


@pytest.mark.parametrize(
    ("made_of", "complaint"),
    [
        (lambda: None, "returned NoneType"),
        (lambda: Event("added", {"by": 1}), "returned Event"),
        (lambda: "added", "returned str"),
        (lambda: {"type": "added"}, "returned dict"),
        (lambda: ["added"], "made a str"),
        (lambda: [Event("no type", {})], "no type"),
        (lambda: [Event("added", {"by": object()})], "no JSON"),
        (lambda: [Event("added", [1])], "no object"),
        (lambda: [Event("added", {"by": 1}, tags=("a b",))], "is not a tag"),
        (lambda: [Event("added", {"by": 1}, occurred_at=NO_OFFSET)], "without an offset"),
        (lambda: [Event("added", {"by": 1}, tags=tuple(map(str, range(17))))], "16 tags"),
        (lambda: [Event("added", {"by": "x" * 300_000})], "of more than 262144 bytes"),
        (lambda: [Event("added", {"by": 1})] * 1_001, "more than 1000"),
        (lambda: (Event("added", {"by": 1 // 0}) for _ in "x"), "ZeroDivisionError"),
    ],
)
def test_p3_what_decide_may_not_give_back_appends_nothing(
    made_of: Callable[[], Any], complaint: str
) -> None:
    async def check(made: World) -> None:
        def mistaken(command: Command, state: Count) -> Any:
            return made_of()

        with pytest.raises(DeciderFailed, match=complaint) as failed:
            await made.handler(counter(decide=mistaken)).handle(add(1))
        assert failed.value.fields["file"] == __file__
        with pytest.raises(NotFound):
            await events_of(made)

    in_world(check)


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        (DecidedLimits(events=1), "more than 1 events"),
        (DecidedLimits(event_bytes=7), "of more than 7 bytes"),
        (DecidedLimits(tags=1), "more than 1 tags"),
    ],
)
def test_limits_of_what_is_decided_can_be_set(limits: DecidedLimits, complaint: str) -> None:
    made = [Event("added", {"by": 1}, tags=("a", "b"))] * 2
    command = Command("add", {}, entity="1", at=datetime.now(UTC))
    decider = counter(decide=lambda command, state: made)
    assert decided(decider, command, None) == made
    with pytest.raises(DeciderFailed, match=complaint):
        decided(decider, command, None, limits)


def test_an_event_that_its_schema_refuses_is_the_deciders_fault() -> None:
    async def check(made: World) -> None:
        await made.append({"by": 1})

        def mistaken(command: Command, state: Count) -> Any:
            return [Event("added", {"by": "one"})]

        with pytest.raises(DeciderFailed, match=r"schema refuses: \$.by"):
            await made.handler(counter(decide=mistaken)).handle(add(1))

    in_world(check)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, Refused])
def test_evolve_may_not_fail(kind: type[BaseException]) -> None:
    def failing(state: Count, event: Event) -> Count:
        raise kind("no")

    async def check(made: World) -> None:
        await made.append({"by": 1})
        handler = made.handler(counter(evolve=failing))
        with pytest.raises(DeciderFailed):
            await handler.handle(add(1))
        assert len(await events_of(made)) == 1

    in_world(check)


def test_a_state_that_cannot_be_kept_stops_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def evolve(state: Count, event: Event) -> Count:
        by = event.data["by"]
        return Count(total=state.total + by, steps=[*state.steps, by])  # A list, not a tuple.

    async def check(made: World) -> None:
        handler = made.handler(counter(evolve=evolve))
        for _ in range(6):
            await handler.handle(add(1))
        assert made.snapshots.kept == {}
        warned = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(warned) == 1
        assert "expected tuple" in warned[0].getMessage()

    in_world(check)


def test_no_state_is_a_state_too() -> None:
    """None is what many take for nothing: it must not make a fold begin again."""

    def evolve(state: int | None, event: Event) -> int | None:
        return None if event.data["by"] == 0 else (state or 0) + event.data["by"]

    async def check(made: World) -> None:
        decider = counter(evolve=evolve, initial_state=7, every=2)
        await made.append(*[{"by": 1}] * 499, {"by": 0})
        entities = made.entities(decider)
        for _ in range(2):
            found = await entities.load("counter", STREAM)
            assert await entities.frozen(found) is None
        ((kept,),) = [each.values() for each in made.snapshots.kept.values()]
        assert kept.state == "null"
        await made.append({"by": 3})
        assert await entities.frozen(await entities.load("counter", STREAM)) == 3

    in_world(check)


def test_unknown_commands_and_categories() -> None:
    async def check(made: World) -> None:
        handler = made.handler(counter())
        for stream, name in (("counter-1", "multiply"), ("order-1", "add")):
            request = add(1)
            with pytest.raises(NotFound) as missing:
                await handler.handle(type(request)(stream=stream, name=name, data={}, metadata={}))
            assert isinstance(missing.value, PenstockError)

    in_world(check)
