"""One writer: asks, repeats with the same ids until it is certain, and says what came of it."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import httpx
import orjson

from eventstore.store import StreamAppended
from kernel.positions import Position, Version
from tests.torture.board import Board
from tests.torture.options import Options
from tests.torture.services import Fleet
from tests.torture.verification.checker import HistoryChecker
from tests.torture.verification.history import (
    VERSION_CONFLICT,
    Accepted,
    AppendOperation,
    Outcome,
    RefusedAppend,
    Unknown,
)
from tests.torture.workload import Request, Workload

_ATTEMPT_S = 3.0
_HASTY_S = 0.01
_AGAIN_S = 0.05
_DELAYED = 0.1
_REFUSALS = frozenset({400, 404, 409, 410, 412, 413, 422})


class Writer:
    """One process of the history: one request at a time."""

    def __init__(
        self,
        workload: Workload,
        fleet: Fleet,
        board: Board,
        checker: HistoryChecker,
        options: Options,
    ) -> None:
        self._workload = workload
        self._fleet = fleet
        self._board = board
        self._checker = checker
        self._options = options
        self._rng = random.Random(f"{options.seed}/{workload.process}")

    async def run(self) -> None:
        """Write until there is enough."""
        headers = {"content-type": "application/json"}
        async with httpx.AsyncClient(
            trust_env=False, timeout=_ATTEMPT_S, headers=headers
        ) as client:
            while not self._board.enough.is_set():
                await self._operation(client)
                if self._rng.random() < _DELAYED:
                    await asyncio.sleep(self._rng.random() * self._options.delay_s)

    async def _operation(self, client: httpx.AsyncClient) -> None:
        request = self._workload.request()
        begun = time.monotonic()
        invoked_ns = time.monotonic_ns()
        outcome = await _Asking(client, self._fleet, self._board, request).outcome(
            begun + (0 if request.hasty else self._options.patience_s)
        )
        completed_ns = time.monotonic_ns()
        match outcome:
            case Accepted():
                self._workload.learn(outcome)
                self._board.acknowledge(request.events, begun)
                self._board.answers["accepted"] += 1
            case RefusedAppend(by=by):
                self._board.answers[by] += 1
                for write in request.writes:
                    self._workload.forget(write.stream)
            case Unknown():
                self._board.answers["unknown"] += 1
        self._checker.operation(
            AppendOperation(
                process=self._workload.process,
                invoked_ns=invoked_ns,
                completed_ns=completed_ns,
                writes=request.writes,
                condition=request.condition,
                outcome=outcome,
            )
        )


class _Asking:
    """All attempts of one request.

    `dangling`: an attempt was sent and may still be carried out, for no certain answer came.
    """

    def __init__(
        self, client: httpx.AsyncClient, fleet: Fleet, board: Board, request: Request
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._board = board
        self._request = request
        self._dangling = False

    async def outcome(self, deadline: float) -> Outcome:
        """Ask until the answer is certain or the time is up."""
        while True:
            service = self._fleet.best()
            try:
                answer = await self._client.post(
                    service.url + self._request.path,
                    content=self._request.body,
                    timeout=_HASTY_S if self._request.hasty else _ATTEMPT_S,
                )
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
                self._fleet.failed(service)
            except httpx.TransportError:
                self._dangling = True
                self._fleet.failed(service)
            else:
                outcome = self._judged(answer)
                if isinstance(outcome, Accepted):
                    self._fleet.worked(service)
                if outcome is not None:
                    return outcome
                if answer.status_code != 429:
                    self._fleet.failed(service)
            if time.monotonic() > deadline:
                return Unknown() if self._dangling else RefusedAppend(by="unavailable")
            await asyncio.sleep(_AGAIN_S)

    def _judged(self, answer: httpx.Response) -> Outcome | None:
        """Return what an answer says for certain, None when it has to be asked again."""
        document = orjson.loads(answer.content)
        if answer.status_code in (200, 201):
            return Accepted(answers=_answers(document))
        kind = str(document.get("type"))
        self._board.answers[f"{answer.status_code} {kind}"] += 1
        if answer.status_code in _REFUSALS:
            return RefusedAppend(by=kind) if self._final(kind) else Unknown()
        # Anything but these may have been committed before it failed.
        self._dangling |= kind not in ("overloaded", "unavailable", "storage-full")
        return None

    def _final(self, kind: str) -> bool:
        """Return whether a refusal holds for an earlier attempt that may still be carried out.

        What was in the way stays in the way for ever, except for a stream that did not exist.
        """
        missing = any(write.expected == "stream_exists" for write in self._request.writes)
        return not (self._dangling and kind == VERSION_CONFLICT and missing)


def _answers(document: dict[str, Any]) -> tuple[StreamAppended, ...]:
    return tuple(
        StreamAppended(
            stream=answer["stream"],
            first_version=Version(answer["first_version"]),
            last_version=Version(answer["last_version"]),
            first_position=Position(answer["first_position"]),
            last_position=Position(answer["last_position"]),
        )
        for answer in document.get("appends", [document])
    )
