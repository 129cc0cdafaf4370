"""The four worlds of the contract suite: a real service or the fake, the async or sync client."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from penstock_client import AsyncPenstock, Penstock, Retry
from penstock_client.testing import FakePenstock
from tests.support.services.http import service_in_thread
from tests.support.services.proxy import Proxy

WORLDS = ("server-async", "server-sync", "fake-async", "fake-sync")
ONE_OF_EACH = (
    "server-async",
    pytest.param("server-sync", marks=pytest.mark.matrix),
    "fake-async",
    "fake-sync",
)
"""The sync client is written from the async one: what both say to a service is the same. How they
follow feeds is not; tests of that take all worlds.
"""
_ITERATORS = {"read_stream", "read_all", "subscribe", "deliveries"}
_PARTS = {"schemas", "streams", "groups"}
_END = object()
QUICK = Retry(first_s=0.01, cap_s=0.05)


async def in_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Run a call in a thread that nobody waits for once the test is over.

    The executor of the loop would be joined: a call that hangs could never become a failure.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(how: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            how(value)

    def work() -> None:
        try:
            answer = (future.set_result, call(*args, **options))
        except Exception as error:
            answer = (future.set_exception, error)
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, *answer)

    threading.Thread(target=work, name="client", daemon=True).start()
    return await future


@dataclass(frozen=True, kw_only=True)
class World:
    """A client (driven as the async one) and a way to break its feeds."""

    client: Any
    break_feeds: Callable[[], None]


class InThread:
    """A sync client, driven as the async one: calls run in threads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name in _PARTS:
            return InThread(value)
        if name in _ITERATORS:
            return lambda *args, **options: _Stepped(value(*args, **options))
        if name == "group":
            return lambda *args, **options: InThread(value(*args, **options))
        return lambda *args, **options: in_thread(value, *args, **options)


class _Stepped:
    """A sync iterator, stepped in threads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def position(self) -> Any:
        return self._inner.position

    def __aiter__(self) -> _Stepped:
        return self

    async def __anext__(self) -> Any:
        item = await in_thread(next, self._inner, _END)
        if item is _END:
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> _Stepped:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await in_thread(self._inner.close)


Body = Callable[[World], Awaitable[None]]


@contextmanager
def opened(kind: str, dsn: str | None, **options: Any) -> Iterator[Callable[[Body], None]]:
    """Yield a function that runs a coroutine function in a world of this kind."""
    which, colour = kind.split("-")
    if which == "fake":
        fake = FakePenstock(schemas=options.get("mode", "infer"))
        yield lambda body: asyncio.run(
            _inside(body, lambda: _of_fake(fake, colour), fake.break_feeds)
        )
        return
    assert dsn is not None
    with service_in_thread(dsn, **options) as http, Proxy(http.base_url.port) as proxy:
        yield lambda body: asyncio.run(
            _inside(body, lambda: _of_url(proxy.url, colour), proxy.break_all)
        )


async def _inside(body: Body, client: Callable[[], Any], break_feeds: Callable[[], None]) -> None:
    async with client() as opened_client:
        await body(World(client=opened_client, break_feeds=break_feeds))


@asynccontextmanager
async def _of_fake(fake: FakePenstock, colour: str) -> AsyncIterator[Any]:
    if colour == "async":
        async with fake.async_client() as client:
            yield client
    else:
        with fake.client() as sync_client:
            yield InThread(sync_client)


@asynccontextmanager
async def _of_url(url: str, colour: str) -> AsyncIterator[Any]:
    if colour == "async":
        async with AsyncPenstock(url, retry=QUICK, verify=False) as client:
            yield client
    else:
        with Penstock(url, retry=QUICK, verify=False) as sync_client:
            yield InThread(sync_client)
