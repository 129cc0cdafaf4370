"""One torture run, from an empty store to the verdict.

1. Migrate, keep the schema, start the services.
2. Write, tail and kill until enough events are acknowledged.
3. Let queues and readers come to rest; stop the readers.
4. Read what is stored, read streams by themselves, judge.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TextIO

import httpx
import orjson

from eventstore.postgres.migrate import migrate
from eventstore.postgres.schema_cache import PostgresSchemaCache
from eventstore.postgres.store import PostgresEventStore
from kernel.errors import InvalidRequest, Unavailable
from tests.torture.board import Board
from tests.torture.database import Database
from tests.torture.final import head, stored_events
from tests.torture.kills import Killer, check_kinds
from tests.torture.options import Options
from tests.torture.progress import Progress, Say
from tests.torture.services import Fleet
from tests.torture.tailing import follow_feed, follow_pages, seen
from tests.torture.transacting import SCHEMA_ID, TransactingWriter, schema
from tests.torture.verification.anomalies import HistoryReport
from tests.torture.verification.checker import HistoryChecker
from tests.torture.verification.history import MAX_PROCESS, Seen
from tests.torture.verification.readers import ReaderWatch
from tests.torture.workload import SUBJECT, Workload
from tests.torture.writing import Writer

_REST_S = 600.0
_POLL_S = 0.05
_PAGE = 1_000
_STREAM_EVENTS = 500_000
"""Streams are read by themselves until so many events: all of ten million would take too long."""
_TRIES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a run showed. `failed`: why it could not show more, None when it went to its end."""

    options: Options
    board: Board
    report: HistoryReport
    starts: int
    judging_s: float

    @property
    def clean(self) -> bool:
        """Whether the run went to its end and no promise was broken."""
        return self.report.clean and self.board.failed is None

    def document(self) -> dict[str, object]:
        """Return everything as JSON-like values."""
        board, options = self.board, self.options
        healed = [kill.healed_s for kill in board.kills if kill.healed_s is not None]
        return {
            "clean": self.clean,
            "failed": board.failed,
            "events_acknowledged": board.acknowledged,
            "writing_s": round(board.writing_s, 1),
            "events_per_s": round(board.acknowledged / max(board.writing_s, 0.001)),
            "judging_s": round(self.judging_s, 1),
            "kills": len(board.kills),
            "longest_heal_s": max(healed, default=None),
            "service_starts": self.starts,
            "answers": dict(board.answers.most_common()),
            "asked": {
                "events": options.events,
                "writers": options.writers,
                "transactors": options.transactors,
                "batch": options.batch,
                "readers": options.readers,
                "services": options.services,
                "kills": list(options.kills),
                "seed": options.seed,
            },
            "verdict": self.report.document(),
            "each_kill": [
                {
                    "kind": kill.kind,
                    "victim": kill.victim,
                    "at_s": kill.at_s,
                    "events": kill.events,
                    "healed_s": kill.healed_s,
                }
                for kill in board.kills
            ],
        }


async def torture(
    options: Options, database: Database, *, say: Say, progress_to: TextIO | None = None
) -> Verdict:
    """Run to the end and judge. Raises `InvalidRequest` for options that make no sense."""
    check_kinds(options.kills)
    writers = options.writers + options.transactors
    if not 0 < writers <= MAX_PROCESS:
        raise InvalidRequest(f"{writers} writers: from 1 to {MAX_PROCESS}")
    rng = random.Random(options.seed)
    run = rng.getrandbits(32)
    board = Board(wanted=options.events, least_kills=options.least_kills)
    checker = HistoryChecker(run)
    await _prepare(database.dsn)
    fleet = Fleet(options.folder, database.dsn, options.services, rng)
    fleet.start()
    try:
        await fleet.ready()
        readers = [checker.reader(f"reader {number}") for number in range(1, options.readers + 1)]
        async with _tailing(readers, fleet, rng):
            await _write(options, run, database, fleet, board, checker, progress_to, readers)
            say(f"{board.acknowledged:,} events acknowledged; readers come to rest")
            await _rest(database.dsn, fleet, readers, board)
        say("judging")
        begun = time.monotonic()
        await _judge(options, database.dsn, fleet, checker, rng)
        return Verdict(
            options=options,
            board=board,
            report=checker.report(),
            starts=sum(service.starts for service in fleet.services),
            judging_s=time.monotonic() - begun,
        )
    finally:
        fleet.kill()


async def _prepare(dsn: str) -> None:
    """Migrate, and keep the one schema: services need no registry then."""
    await migrate(dsn)
    async with PostgresEventStore(dsn) as store:
        await PostgresSchemaCache(store).keep(SUBJECT, SCHEMA_ID, schema())


async def _write(
    options: Options,
    run: int,
    database: Database,
    fleet: Fleet,
    board: Board,
    checker: HistoryChecker,
    progress_to: TextIO | None,
    readers: list[ReaderWatch],
) -> None:
    """Let writers write and the killer kill until there is enough."""
    progress = None if progress_to is None else Progress(board, readers, progress_to)
    reporting = None if progress is None else asyncio.create_task(progress.run())
    board.began = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for process in range(options.writers + options.transactors):
                workload = Workload(
                    run=run,
                    process=process,
                    options=options,
                    rng=random.Random(f"{options.seed}/{process}"),
                )
                if process < options.writers:
                    writer = Writer(workload, fleet, board, checker, options).run()
                else:
                    writer = TransactingWriter(
                        database.dsn, workload, board, checker, options
                    ).run()
                group.create_task(writer)
            if options.kills:
                rng = random.Random(options.seed + 1)
                group.create_task(Killer(database, fleet, board, options, rng).run())
    finally:
        board.writing_s = board.elapsed_s()
        if reporting is not None and progress is not None:
            reporting.cancel()
            progress.done()


@asynccontextmanager
async def _tailing(
    readers: list[ReaderWatch], fleet: Fleet, rng: random.Random
) -> AsyncIterator[None]:
    """Let readers follow; every third one by pages, the others over feeds."""
    tasks = [
        asyncio.create_task(
            follow_pages(watch, fleet) if number % 3 == 2 else follow_feed(watch, fleet, rng)
        )
        for number, watch in enumerate(readers)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result


async def _rest(dsn: str, fleet: Fleet, readers: list[ReaderWatch], board: Board) -> None:
    """Wait until nothing is queued any more and all readers have been shown everything."""
    await fleet.ready()
    await fleet.idle()
    end = time.monotonic() + _REST_S
    while True:
        stored = await _persistently(lambda: asyncio.to_thread(head, dsn))
        if all(reader.last >= stored for reader in readers):
            return
        if time.monotonic() > end:
            behind = [reader.name for reader in readers if reader.last < stored]
            board.fail(f"not shown everything within {_REST_S:g} s: {', '.join(behind)}")
            return
        await asyncio.sleep(_POLL_S)


async def _persistently(ask: Callable[[], Awaitable[int]]) -> int:
    """Ask a database that may just be coming back."""
    import psycopg

    for _ in range(_TRIES):
        try:
            return await ask()
        except psycopg.OperationalError:
            await asyncio.sleep(_POLL_S)
    raise Unavailable("PostgreSQL does not come back")


async def _judge(
    options: Options, dsn: str, fleet: Fleet, checker: HistoryChecker, rng: random.Random
) -> None:
    checker.stored(stored_events(dsn))
    sizes = checker.streams()
    left = _STREAM_EVENTS
    async with httpx.AsyncClient(trust_env=False, timeout=30, base_url=fleet.best().url) as client:
        for name in rng.sample(list(sizes), min(options.streams_read, len(sizes))):
            if sizes[name] <= left:
                left -= sizes[name]
                checker.stream(name, await _stream(client, name))


async def _stream(client: httpx.AsyncClient, name: str) -> list[Seen]:
    """Read a whole stream, page by page."""
    events: list[Seen] = []
    while True:
        answer = await client.get(
            f"/v1/streams/{name}", params={"from_version": len(events), "limit": _PAGE}
        )
        page: list[dict[str, Any]] = orjson.loads(answer.content).get("events", [])
        events += [seen(event) for event in page]
        if len(page) < _PAGE:
            return events
