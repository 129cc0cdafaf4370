"""What is done to the store while clients write, and how long it takes to heal.

service      any service process gets SIGKILL and is started again at once
writer       the process that holds the append lease gets SIGKILL and is started again
pause        the lease's holder is stopped until another one has taken over, then goes on:
             a writer that does not know that it is none any more
connections  PostgreSQL ends all connections of services
postgres     PostgreSQL's postmaster gets SIGKILL and comes back
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from itertools import cycle

import psycopg

from kernel.errors import InvalidRequest
from tests.torture.board import Board, Kill
from tests.torture.database import Database
from tests.torture.options import KILLS, Options
from tests.torture.services import Fleet, Service

_POLL_S = 0.01
_WHOLE_S = 0.1
_TAKE_OVER_S = 20.0
_CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE application_name = 'penstock-service'"
)


def check_kinds(kinds: tuple[str, ...]) -> None:
    """Raise `InvalidRequest` for a kind of kill that there is not."""
    if unknown := set(kinds) - set(KILLS):
        raise InvalidRequest(f"no kill {min(unknown)!r}; there are: {', '.join(KILLS)}")


class Killer:
    """Kills in turn until the run has enough; each time waits until the store has healed."""

    def __init__(
        self, database: Database, fleet: Fleet, board: Board, options: Options, rng: random.Random
    ) -> None:
        self._database = database
        self._fleet = fleet
        self._board = board
        self._options = options
        self._rng = rng

    async def run(self) -> None:
        """Kill until there is enough."""
        for kind in cycle(self._options.kills):
            try:
                async with asyncio.timeout(self._options.kill_every_s):
                    await self._board.enough.wait()
                return
            except TimeoutError:
                await self._kill(kind)

    async def _kill(self, kind: str) -> None:
        board = self._board
        # What was killed last is up again, or else a fail-over would measure its start.
        while not board.enough.is_set() and not await self._fleet.whole():
            await asyncio.sleep(_WHOLE_S)
        victim = await self._victim(kind)
        if board.enough.is_set() or (victim is None and kind in ("service", "writer", "pause")):
            return  # Nobody holds the lease just now, or it is over.
        began = time.monotonic()
        kill = Kill(
            kind=kind,
            victim="" if victim is None else victim.folder.name,
            at_s=round(board.elapsed_s(), 3),
            events=board.acknowledged,
        )
        board.kills.append(kill)
        match kind:
            case "service" | "writer":
                assert victim is not None
                await asyncio.to_thread(victim.kill)
                victim.start()
            case "pause":
                assert victim is not None
                await self._pause(victim)
            case "connections":
                await self._cut()
            case _:
                await asyncio.to_thread(self._database.kill)
        while board.last_begun < began and not board.enough.is_set():
            if time.monotonic() - began > self._options.heal_s:
                board.fail(f"no append was acknowledged in {self._options.heal_s:g} s after {kill}")
                return
            await asyncio.sleep(_POLL_S)
        if board.last_begun >= began:
            kill.healed_s = round(time.monotonic() - began, 3)

    async def _victim(self, kind: str) -> Service | None:
        match kind:
            case "service":
                return self._fleet.any()
            case "writer" | "pause":
                return await self._fleet.writer()
            case _:
                return None

    async def _pause(self, victim: Service) -> None:
        victim.send(signal.SIGSTOP)
        end = time.monotonic() + _TAKE_OVER_S
        try:
            while time.monotonic() < end and await self._fleet.writer() in (victim, None):
                await asyncio.sleep(_POLL_S)
        finally:
            victim.send(signal.SIGCONT)

    async def _cut(self) -> None:
        try:
            async with await psycopg.AsyncConnection.connect(
                self._database.dsn, autocommit=True, connect_timeout=5
            ) as connection:
                await connection.execute(_CUT)
        except psycopg.Error:
            return  # It is down already.
