"""What the client does when calls fail: bounded retries that make things happen exactly once."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock_client import (
    AsyncPenstock,
    CaughtUp,
    NewEvent,
    OutcomeUnknown,
    Overloaded,
    Penstock,
    PenstockError,
    Refused,
    Retry,
    ServiceFault,
    StorageFull,
    Unauthorized,
    Unavailable,
    VersionConflict,
)
from penstock_client.testing import FakePenstock
from tests.clients.worlds import QUICK
from tests.support.services.http import ServiceProcess, service_in_thread
from tests.support.services.proxy import Proxy

LOST = httpx.ReadError("the answer was lost")
DOWN = Unavailable("down")


def placed() -> NewEvent:
    return NewEvent(type="placed", data={"total": 1})


@pytest.mark.parametrize("after_effect", [True, False])
def test_a_lost_answer_is_asked_for_again(after_effect: bool) -> None:
    fake = FakePenstock()
    with fake.client() as client:
        fake.fail_next(LOST, after_effect=after_effect)
        answer = client.append("order-1", placed(), expected_version="no_stream")
        assert (answer.first_version, client.head()) == (0, 1)


@pytest.mark.parametrize("passing", [DOWN, Overloaded("full"), OutcomeUnknown("?"), LOST])
def test_what_passes_by_itself_is_waited_for(passing: PenstockError | httpx.ReadError) -> None:
    fake = FakePenstock()
    with fake.client() as client:
        fake.fail_next(passing, times=5)
        assert client.append("order-1", placed()).last_position == 1
        fake.fail_next(passing, times=5)
        assert client.head() == 1


def test_tries_are_bounded() -> None:
    fake = FakePenstock()
    with fake.client(retry=Retry(attempts=3, first_s=0, cap_s=0)) as client:
        fake.fail_next(DOWN, times=3)
        with pytest.raises(Unavailable):
            client.append("order-1", placed())
        assert client.append("order-1", placed()).last_position == 1


@pytest.mark.parametrize(
    "final", [StorageFull("full"), VersionConflict("moved"), Refused("malformed")]
)
def test_what_does_not_pass_is_raised_at_once(final: PenstockError) -> None:
    fake = FakePenstock()
    with fake.client() as client:
        fake.fail_next(final)
        with pytest.raises(type(final)):
            client.append("order-1", placed())
        assert client.append("order-1", placed()).last_position == 1


def test_a_try_that_was_turned_away_does_not_settle_an_earlier_one() -> None:
    """Lost after it took effect, then down: the client may not say that nothing was kept."""
    fake = FakePenstock()
    events = [placed()]
    with fake.client(retry=Retry(attempts=3, first_s=0, cap_s=0)) as client:
        fake.fail_next(LOST, after_effect=True)
        fake.fail_next(DOWN, times=2)
        with pytest.raises(OutcomeUnknown) as caught:
            client.append("order-1", events)
        assert caught.value.remedy
        assert client.append("order-1", events).last_position == 1
        assert client.head() == 1


@pytest.mark.parametrize(
    "later", [StorageFull("full"), Unauthorized("no token"), ServiceFault("broken")]
)
def test_a_try_that_was_refused_for_good_does_not_settle_an_earlier_one(
    later: PenstockError,
) -> None:
    fake = FakePenstock()
    events = [placed()]
    with fake.client(retry=Retry(first_s=0, cap_s=0)) as client:
        fake.fail_next(LOST, after_effect=True)
        fake.fail_next(later)
        with pytest.raises(OutcomeUnknown) as caught:
            client.append("order-1", events)
        assert type(caught.value.__cause__) is type(later)
        assert client.append("order-1", events).last_position == 1
        # What is told of the events themselves does.
        fake.fail_next(LOST)
        fake.fail_next(VersionConflict("moved"))
        with pytest.raises(VersionConflict):
            client.append("order-1", placed())


def test_nobody_there_means_nothing_was_sent() -> None:
    with (
        Penstock("http://127.0.0.1:1", retry=Retry(attempts=2, first_s=0, cap_s=0)) as client,
        pytest.raises(Unavailable) as caught,
    ):
        client.append("order-1", placed())
    assert type(caught.value) is Unavailable


def test_waits_grow_up_to_a_cap_and_respect_what_the_service_asks() -> None:
    retry = Retry(first_s=0.1, cap_s=2.0)
    for failures, longest in ((1, 0.1), (2, 0.2), (3, 0.4), (9, 2.0), (10_000, 2.0)):
        waits = [retry.delay_s(failures) for _ in range(50)]
        assert longest / 2 <= min(waits) <= max(waits) <= longest
    assert retry.delay_s(1, asked_s=7.0) == 7.0
    assert retry.delay_s(9, asked_s=0.5) >= 1.0


def test_a_subscription_gives_up_after_its_bound() -> None:
    fake = FakePenstock()
    with fake.client(retry=Retry(reconnects=3, first_s=0, cap_s=0)) as client:
        fake.fail_next(DOWN, times=2)
        with client.subscribe() as feed:
            assert next(feed) == CaughtUp(position=0)
        fake.fail_next(DOWN, times=3)
        with client.subscribe() as feed, pytest.raises(Unavailable):
            next(feed)


class Breaking(httpx.SyncByteStream):
    """A feed that breaks behind what it says."""

    def __init__(self, *said: bytes) -> None:
        self._said = said

    def __iter__(self) -> Iterator[bytes]:
        yield from self._said
        raise httpx.ReadError("broken off")


@pytest.mark.parametrize(
    ("said", "opened"),
    [((), 3), ((b": penstock\n\n",), 3), ((b": penstock\n\n", b": heartbeat\n\n"), 8)],
)
def test_feeds_that_break_once_they_are_open_are_bounded_too(
    said: tuple[bytes, ...], opened: int
) -> None:
    """One that says more than that it is open begins the count anew."""
    opens: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        opens.append(request)
        pieces = said if len(opens) < 7 else ()
        return httpx.Response(
            200, stream=Breaking(*pieces), headers={"content-type": "text/event-stream"}
        )

    retry = Retry(reconnects=3, first_s=0, cap_s=0)
    with (
        Penstock("http://penstock", retry=retry, transport=httpx.MockTransport(answer)) as client,
        client.subscribe() as feed,
        pytest.raises(Unavailable),
    ):
        next(feed)
    assert len(opens) == opened


def test_a_feed_goes_on_after_a_wait_that_was_broken_off() -> None:
    fake = FakePenstock()

    async def body() -> None:
        async with fake.async_client() as client:
            feed = client.subscribe()
            assert await anext(feed) == CaughtUp(position=0)
            for position in (1, 2):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(feed), 0.05)
                await client.append("order-1", placed())
                event = await anext(feed)
                assert (event.position, await anext(feed)) == (
                    position,
                    CaughtUp(position=position),
                )
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(feed), 0.05)
            await feed.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(feed)

    asyncio.run(body())


def test_a_feed_goes_on_after_an_interrupt() -> None:
    def interrupted() -> Iterator[bytes]:
        yield b": penstock\n\n"
        raise KeyboardInterrupt

    said = [interrupted(), iter([b'event: caught-up\nid: 4\ndata: {"position": 4}\n\n'])]
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(
        lambda _: httpx.Response(200, content=said.pop(0), headers=headers)
    )
    with (
        Penstock("http://penstock", transport=transport) as client,
        client.subscribe() as feed,
    ):
        with pytest.raises(KeyboardInterrupt):
            next(feed)
        assert next(feed) == CaughtUp(position=4)


def test_a_long_read_goes_on_where_its_connection_broke(postgres_dsn: str) -> None:
    with service_in_thread(postgres_dsn) as http, Proxy(http.base_url.port) as proxy:
        with Penstock(proxy.url, retry=QUICK, verify=False) as client:
            filler = "x" * 2_000
            for _ in range(8):
                client.append(
                    "order-1", [NewEvent(type="placed", data={"f": filler}) for _ in range(500)]
                )
            seen = []
            for event in client.read_all():
                seen.append(event.position)
                if len(seen) in (1, 1_000):
                    proxy.break_all()
        assert seen == list(range(1, 4_001))
        assert proxy.connections >= 2


def test_a_subscriber_and_a_writer_ride_through_a_crash_of_the_service(
    postgres_dsn: str, tmp_path: Path
) -> None:
    service = ServiceProcess(postgres_dsn, tmp_path)
    service.start({"PENSTOCK_SCHEMAS_MODE": "strict"})
    with httpx.Client(base_url=service.url) as plain:
        assert plain.get("/health/ready").status_code == 200

    async def body() -> None:
        patient = Retry(attempts=200, reconnects=200, first_s=0.05, cap_s=0.2)
        async with AsyncPenstock(service.url, retry=patient, verify=False) as client:
            assert (await client.health()).ready
            async with client.subscribe() as feed:
                assert await anext(feed) == CaughtUp(position=0)
                service.stop(signal.SIGKILL)
                waiting = asyncio.create_task(client.head())
                await asyncio.to_thread(service.start)
                assert await waiting == 0
                assert await anext(feed) == CaughtUp(position=0)

    try:
        asyncio.run(body())
    finally:
        service.stop()
