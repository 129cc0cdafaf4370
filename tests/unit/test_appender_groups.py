"""The writer's groups: a request that breaks it fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from eventstore.appender import Appender, AppendLimits
from eventstore.decision import Outcome
from eventstore.feed import Head, diverged
from eventstore.store import Appended, AppendRequest
from kernel.errors import ContractViolation, Overloaded, PenstockError, StoreDiverged, Unavailable
from kernel.positions import Position
from tests.contracts.events import event, request, to


class BreakingCommit:
    """Fails unexpectedly whenever a group holds an event of one stream; can lose events."""

    def __init__(self) -> None:
        self.groups: list[int] = []
        self.lost = False

    async def commit(self, requests: Sequence[AppendRequest]) -> tuple[list[Outcome], Position]:
        await asyncio.sleep(0)
        self.groups.append(len(requests))
        if any(append.stream == "order-poison" for each in requests for append in each.appends):
            raise TypeError("no JSON")
        return [Appended(appends=(), repeated=False) for _ in requests], Position(1)

    async def prepare(self) -> Position:
        if self.lost:
            raise diverged(1, 2)
        return Position(0)

    async def close(self) -> None:
        pass


class LosingCommit:
    """Refuses the first group, and is not to be had any more from then on."""

    def __init__(self, trouble: PenstockError) -> None:
        self._trouble = trouble
        self._refused = False

    async def commit(self, requests: Sequence[AppendRequest]) -> tuple[list[Outcome], Position]:
        assert not self._refused
        self._refused = True
        raise ContractViolation("no such data")

    async def prepare(self) -> Position:
        if self._refused:
            raise self._trouble
        return Position(0)

    async def close(self) -> None:
        pass


def test_an_unexpected_error_fails_one_append_and_not_its_group() -> None:
    async def body() -> None:
        commit = BreakingCommit()
        appender = Appender(commit, Head())
        names = ["order-1", "order-poison", "order-2"]
        answers = [appender.enqueue(request(to(name))) for name in names]
        appender.start()
        first, poison, last = await asyncio.gather(*answers, return_exceptions=True)
        assert isinstance(first, Appended)
        assert isinstance(last, Appended)
        assert isinstance(poison, ContractViolation)
        assert "no JSON" in poison.message
        assert commit.groups == [3, 1, 1, 1]
        await appender.stop()

    asyncio.run(body())


@pytest.mark.parametrize("trouble", [diverged(1, 2), Unavailable("nobody answers")])
def test_those_of_a_refused_group_wait_no_longer_than_others(trouble: PenstockError) -> None:
    """Though the store cannot be written to when they are to be committed one by one."""

    async def body() -> None:
        limits = AppendLimits(answer_s=0.3, retry_s=0.01)
        appender = Appender(LosingCommit(trouble), Head(), limits=limits)
        answers = [appender.enqueue(request(to(f"order-{number}"))) for number in range(3)]
        appender.start()
        done, waiting = await asyncio.wait(answers, timeout=10)
        assert not waiting
        assert {type(each.exception()) for each in done} == {type(trouble)}
        with pytest.raises(type(trouble)):
            await appender.append(request(to("order-9")))
        await appender.stop()

    asyncio.run(body())


def test_metadata_fills_the_queue_as_data_do() -> None:
    async def body() -> None:
        appender = Appender(BreakingCommit(), Head(), limits=AppendLimits(queue_bytes=10_000))
        told = to("order-1", [event(metadata={"text": "x" * 9_000})])
        first = appender.enqueue(request(told))
        with pytest.raises(Overloaded):
            appender.enqueue(request(to("order-2", [event(metadata={"text": "x" * 9_000})])))
        appender.start()
        await first
        await appender.stop()

    asyncio.run(body())


def test_appends_to_a_store_that_lost_events_are_refused_by_name() -> None:
    async def body() -> None:
        commit = BreakingCommit()
        commit.lost = True
        appender = Appender(commit, Head(), limits=AppendLimits(idle_s=0.01))
        appender.start()
        with pytest.raises(StoreDiverged):
            await appender.append(request(to("order-1")))
        assert appender.trouble is not None
        assert "position 1" in appender.trouble
        await appender.stop()

    asyncio.run(body())


def test_a_stop_while_the_lease_is_taken_waits_for_no_rest() -> None:
    class SlowLease(BreakingCommit):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.given = asyncio.Event(), asyncio.Event()

        async def prepare(self) -> Position:
            self.asked.set()
            await self.given.wait()
            return Position(0)

    async def body() -> None:
        commit = SlowLease()
        appender = Appender(commit, Head(), limits=AppendLimits(idle_s=60))
        appender.start()
        await commit.asked.wait()
        stopping = asyncio.create_task(appender.stop())
        await asyncio.sleep(0)
        commit.given.set()
        await asyncio.wait_for(stopping, 10)

    asyncio.run(body())
