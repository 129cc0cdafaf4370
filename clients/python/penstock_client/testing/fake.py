"""The fake: a transport that both clients can be given, and the ways to make it misbehave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import httpx

from penstock_client._async.client import AsyncPenstock
from penstock_client._sync.client import Penstock
from penstock_client.errors import PenstockError
from penstock_client.retry import Retry
from penstock_client.testing.deciders import FakeDecider, MemoryDeciders
from penstock_client.testing.groups import MemoryGroups
from penstock_client.testing.memory import MemoryStore
from penstock_client.testing.projections import MemoryProjections
from penstock_client.testing.requests import gives_nothing, problem, waits_s
from penstock_client.testing.routes import Routes
from penstock_client.testing.schemas import MemorySchemas
from penstock_client.testing.streams import MemoryStreams

_URL = "http://penstock.test"
_PAUSE_S = 0.02


class FakePenstock(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A service in memory. `client()` and `async_client()` open real clients on it.

    All clients of one fake see one store, from any thread. `schemas="strict"` refuses types
    without a schema; by default they take any data. `deciders` are by category. `now` replaces
    the clock.
    """

    def __init__(
        self,
        *,
        schemas: Literal["infer", "strict"] = "infer",
        deciders: Mapping[str, FakeDecider] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        registered = MemorySchemas(schemas)
        self._store = MemoryStore(registered.check, now)
        self._projections = MemoryProjections()
        self._routes = Routes(
            self._store,
            registered,
            MemoryStreams(self._store),
            MemoryGroups(self._store, now),
            MemoryDeciders(self._store, deciders or {}),
            self._projections,
        )
        self._faults: list[tuple[PenstockError | httpx.TransportError, bool]] = []

    def client(self, **options: Any) -> Penstock:
        """Open a sync client. `options` are those of `Penstock`; retries wait for no time."""
        return Penstock(_URL, transport=self, **_patient(options))

    def async_client(self, **options: Any) -> AsyncPenstock:
        """Open an async client. `options` are those of `AsyncPenstock`."""
        return AsyncPenstock(_URL, transport=self, **_patient(options))

    def fail_next(
        self,
        error: PenstockError | httpx.TransportError,
        *,
        times: int = 1,
        after_effect: bool = False,
    ) -> None:
        """Let the next calls fail, before they do anything or after they have done it.

        A `PenstockError` is answered as its problem; a transport error breaks the connection.
        """
        self._faults.extend([(error, after_effect)] * times)

    def put_rows(
        self, projection: str, *, key: Iterable[str], rows: Iterable[Mapping[str, Any]]
    ) -> None:
        """Let a projection have these rows, as of a new epoch. No SQL is run here."""
        self._projections.put(projection, key, rows)

    def break_feeds(self) -> None:
        """Break the connection of every open subscription."""
        self._routes.break_feeds()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Serve the sync client."""
        request.read()
        answer, left = self._answer(request), waits_s(request)
        while left > 0 and gives_nothing(answer):
            time.sleep(_PAUSE_S)
            answer, left = self._answer(request), left - _PAUSE_S
        return answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Serve the async client."""
        await request.aread()
        answer, left = self._answer(request), waits_s(request)
        while left > 0 and gives_nothing(answer):
            await asyncio.sleep(_PAUSE_S)
            answer, left = self._answer(request), left - _PAUSE_S
        return answer

    def close(self) -> None:
        """Do nothing: the store outlives its clients."""

    async def aclose(self) -> None:
        """Do nothing: the store outlives its clients."""

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if not self._faults:
            return self._routes.answer(request)
        error, after_effect = self._faults.pop(0)
        if after_effect:
            self._routes.answer(request)
        if isinstance(error, httpx.TransportError):
            raise error
        return problem(error)


def _patient(options: dict[str, Any]) -> dict[str, Any]:
    """Tests wait for nothing: failures are planned, not overcome by time."""
    return {"retry": Retry(first_s=0.0, cap_s=0.0)} | options
