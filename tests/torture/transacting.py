"""A writer that appends inside SQL transactions of its own, and takes many of them back.

It holds the append lock while it dawdles: positions must stay without gaps all the same.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import psycopg

from eventstore.postgres.connect import conninfo
from eventstore.postgres.in_transaction import append_encoded
from eventstore.store import EncodedEvent
from kernel.errors import Overloaded, Unavailable, VersionConflict
from schemas.inference import widened
from schemas.json_codec import JsonCodec
from schemas.wire import frame
from tests.torture.board import Board
from tests.torture.options import Options
from tests.torture.verification.checker import HistoryChecker
from tests.torture.verification.history import (
    VERSION_CONFLICT,
    Accepted,
    AppendOperation,
    Outcome,
    RefusedAppend,
    Unknown,
    Write,
    event_id,
)
from tests.torture.workload import SAMPLE, SUBJECT, TYPE, Workload

SCHEMA_ID = 1
ROLE = "penstock_appender"
_ROLLED_BACK = 0.3
_AGAIN_S = 0.1
_PAUSE_S = 0.5
"""Its transactions hold all others up: it does not want to be most of the load."""


def schema() -> str:
    """Return the one schema of a run."""
    return widened(SUBJECT, None, SAMPLE)


class TransactingWriter:
    """One process of the history: one transaction at a time."""

    def __init__(
        self, dsn: str, workload: Workload, board: Board, checker: HistoryChecker, options: Options
    ) -> None:
        self._conninfo = conninfo(dsn, role=ROLE)
        self._workload = workload
        self._board = board
        self._checker = checker
        self._options = options
        self._rng = random.Random(f"{options.seed}/{workload.process}/sql")
        self._data = frame(SCHEMA_ID, JsonCodec(schema()).encode(SAMPLE))
        self._connection: psycopg.AsyncConnection[Any] | None = None

    async def run(self) -> None:
        """Write until there is enough."""
        try:
            while not self._board.enough.is_set():
                await self._operation()
                await asyncio.sleep(self._rng.random() * _PAUSE_S)
        finally:
            await self._leave()

    async def _operation(self) -> None:
        write, tags = self._workload.transaction()
        keeps = self._rng.random() >= _ROLLED_BACK
        begun, invoked_ns = time.monotonic(), time.monotonic_ns()
        outcome = await self._outcome(write, self._events(write, tags), keeps=keeps, begun=begun)
        match outcome:
            case Accepted():
                self._workload.learn(outcome)
                self._board.acknowledge(write.count, begun)
                self._board.answers["committed in SQL"] += 1
            case RefusedAppend(by=by):
                self._workload.forget(write.stream)
                self._board.answers[f"{by} in SQL"] += 1
            case Unknown():
                self._board.answers["unknown in SQL"] += 1
        self._checker.operation(
            AppendOperation(
                process=self._workload.process,
                invoked_ns=invoked_ns,
                completed_ns=time.monotonic_ns(),
                writes=(write,),
                outcome=outcome,
            )
        )

    async def _outcome(
        self, write: Write, events: list[EncodedEvent], *, keeps: bool, begun: float
    ) -> Outcome:
        """Repeat a transaction, its ids the same, until what became of it is certain."""
        dangling = False
        while True:
            committing = False
            try:
                connection = await self._connected()
                appended = await append_encoded(
                    connection, write.stream, events, expected=write.expected
                )
                await asyncio.sleep(self._rng.random() * self._options.delay_s)
                if not keeps:
                    await connection.rollback()
                    return RefusedAppend(by="rolled back")
                committing = True
                await connection.commit()
            except VersionConflict:
                await self._leave()
                return RefusedAppend(by=VERSION_CONFLICT)
            except (Overloaded, Unavailable, psycopg.Error):
                await self._leave()
                dangling |= committing
            else:
                return Accepted(answers=appended.appends)
            if time.monotonic() - begun > self._options.patience_s or not keeps:
                return Unknown() if dangling else RefusedAppend(by="unavailable")
            await asyncio.sleep(_AGAIN_S)

    def _events(self, write: Write, tags: tuple[str, ...]) -> list[EncodedEvent]:
        return [
            EncodedEvent(
                id=event_id(self._workload.run, self._workload.process, number),
                type=TYPE,
                schema_id=SCHEMA_ID,
                data=self._data,
                metadata={},
                tags=tags,
                occurred_at=None,
            )
            for number in range(write.first, write.first + write.count)
        ]

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(self._conninfo)
        return self._connection

    async def _leave(self) -> None:
        """Close the connection; what it had open is rolled back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
