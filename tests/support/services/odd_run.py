"""Odd sources and odd events through the whole stack while its parts are killed, from one seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from apps.access import bearing
from apps.settings import load
from lake.tables import Tables
from pipeline.commit.manifest import Manifest
from pipeline.verification.book import Verifications
from stack.control import kill_part
from tests.support.oracles.newest_facts import differing_facts
from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack
from tests.support.sources.odd_tables import OddTables
from tests.support.store.odd_events import CATEGORY, OddEvents

SOURCE = "odd"
PARTS = ("connect", "pipeline", "service", "connect")
"""Connect twice: rows and DDL that it reads late are what most of this is about."""
LEFT = """
SELECT 'slot', slot_name::text FROM pg_replication_slots WHERE database = %(database)s
UNION ALL SELECT 'publication', pubname::text FROM pg_publication
UNION ALL SELECT 'event trigger', evtname::text FROM pg_event_trigger
"""
"""What a source has in its database beside tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OddOptions:
    """How long, and from which seed all names, values, DDL and moments come."""

    seed: int = 2013
    minutes: float = 30.0
    rounds: int | None = None
    """So many rounds, however long they take; None: as many as the minutes hold."""
    tables: int = 6
    compare_every: int = 3
    category: str = CATEGORY
    """Of the events: another one for each run over one store."""
    patience_s: float = 600.0
    """For each thing that is waited for."""
    keep: bool = False
    """Leave a source as it is on which something failed."""


@dataclass
class OddResult:
    """What a run did and saw. It holds when nothing is said in `failed`."""

    seed: int
    rounds: int = 0
    comparisons: int = 0
    transactions: int = 0
    ddl: list[str] = field(default_factory=list)
    events: int = 0
    refused_events: int = 0
    held: list[str] = field(default_factory=list)
    seconds: float = 0.0
    failed: str = ""

    def document(self) -> dict[str, object]:
        """Return it for a file."""
        return {"holds": not self.failed, **asdict(self)}


class OddRun:
    """Carries out what the options ask for, on a running stack with every part."""

    def __init__(
        self, stack: WholeStack, options: OddOptions, say: Callable[[str], None] = print
    ) -> None:
        self.stack = stack
        self.options = options
        self.result = OddResult(seed=options.seed)
        self._say = say
        self._began = datetime.now(UTC)
        self._rng = random.Random(options.seed)
        self.tables = OddTables(stack.dsn, options.seed, tables=options.tables)
        url = stack.settings.required("service.url")
        self._events = OddEvents(
            url,
            bearing(stack.settings, url),
            options.seed,
            category=options.category,
            unanswered=lambda: stack.start_where_given_up("service"),
        )

    def run(self) -> OddResult:
        """Return what came of it; a difference and any other error end up in `failed`."""
        began = time.monotonic()
        self._say(f"odd sources and events: seed {self.options.seed}")
        try:
            self._capture()
            while self._goes_on(began):
                self._round()
                if self.result.rounds % self.options.compare_every == 0:
                    self._compare()
            self._compare()
        except Exception as error:
            self._fail(error)
        try:
            if not (self.options.keep and self.result.failed):
                self._remove()
        except Exception as error:
            self._fail(error)
        self.result.transactions, self.result.ddl = self.tables.transactions, self.tables.ddl
        self.result.events = len(self._events.accepted)
        self.result.refused_events = self._events.refused
        self.result.seconds = round(time.monotonic() - began, 1)
        return self.result

    def _fail(self, error: Exception) -> None:
        """Keep the first failure: what comes after it may be its consequence."""
        if not self.result.failed:
            self.result.failed = f"{type(error).__name__}: {error}"[:8_000]

    def _goes_on(self, began: float) -> bool:
        if self.options.rounds is not None:
            return self.result.rounds < self.options.rounds
        return time.monotonic() - began < self.options.minutes * 60

    def _capture(self) -> None:
        self.tables.create()
        names = ",".join(self.tables.names)
        self.stack.command("source", "add", SOURCE, "--dsn", self.stack.dsn, "--tables", names)

    def _round(self) -> None:
        """Kill a part and write, alter and append while it is away and after it is back."""
        self.result.rounds += 1
        part = self._rng.choice(PARTS)
        self.stack.revive(part, deadline_s=self.options.patience_s)
        killed = kill_part(self.stack.workspace, part)
        self.tables.write(6)
        self.tables.alter(2)
        self.tables.write(6)
        self._events.append(5)
        self.stack.revive(part, besides=killed, deadline_s=self.options.patience_s)
        self.tables.write(4)
        self.tables.alter(1)
        self._events.append(5)
        self._say(
            f"round {self.result.rounds}: {part} was killed; {self.tables.transactions}"
            f" transactions, {len(self.tables.ddl)} DDL, {len(self._events.accepted)} events"
        )

    def _compare(self) -> None:
        """Let source and lake be equal at one LSN, and events be what was accepted."""
        for part in set(PARTS):
            self.stack.revive(part, deadline_s=self.options.patience_s)
        seen: list[Any] = []

        def equal() -> bool:
            lost = self._differed()
            assert not lost, lost[:5]
            try:
                seen.append(
                    self.stack.command("source", "verify", SOURCE, "--timeout", "60", code=None)
                )
            except Exception as error:
                seen.append(f"{type(error).__name__}: {error}")
                return False
            self._release(seen[-1].get("tables", ()))
            return bool(seen[-1].get("equal"))

        try:
            until(equal, "source and lake are equal", deadline_s=self.options.patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {_wrong(seen[-1])}; {self.stack.health()}") from error
        self.stack.command("wait", "--caught-up", "--timeout", str(int(self.options.patience_s)))
        wrong = [*self._differed(), *self._events.differing(self.stack.lake), *self._facts()]
        assert not wrong, wrong[:5]
        self.result.comparisons += 1
        self._say(f"comparison {self.result.comparisons}: equal")

    def _facts(self) -> list[str]:
        """Return where the newest facts of typed tables are not what the current tables hold."""
        last = Manifest(self.stack.lake, Tables()).last()
        assert last is not None, "there was an epoch"
        return differing_facts(self.stack.lake, SOURCE, last.tables)

    def _differed(self) -> list[str]:
        """Return what differed at any LSN since the begin: the pipeline heals what it finds."""
        facts = Verifications(self.stack.lake, Tables()).of(SOURCE)
        return [
            f"{fact.table} at LSN {fact.lsn}: {fact.missing} missing, {fact.extra} extra,"
            f" {fact.differing} differing; {fact.cause}, {fact.keys}"
            for fact in facts
            if fact.at >= self._began and fact.missing + fact.extra + fact.differing
        ]

    def _remove(self) -> None:
        """Remove the source, and its database: nothing of it may be left behind there."""
        for part in set(PARTS):
            self.stack.revive(part, deadline_s=self.options.patience_s)
        removed = self.stack.command("source", "remove", SOURCE, "--yes")
        assert removed["whole"], removed
        with psycopg.connect(self.stack.dsn, autocommit=True) as connection:
            left = connection.execute(LEFT, {"database": SOURCE}).fetchall()
        assert not left, f"after the removal: {left}"
        admin = self.stack.settings.required("postgres.dsn")
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {SOURCE} WITH (FORCE)".encode())

    def _release(self, tables: Any) -> None:
        """Read held tables again, with the command that their hold names."""
        for table in tables:
            if table["held"] is not None and "penstock source resnapshot" in table["held"]:
                self.result.held.append(f"{table['table']}: {table['held']}")
                self._say(f"held: {table['table']}: {table['held']}")
                self.stack.command(
                    "source", "resnapshot", SOURCE, "--tables", table["table"], "--yes", code=None
                )


def _wrong(found: Any) -> Any:
    if not isinstance(found, dict) or "tables" not in found:
        return found
    return [table for table in found["tables"] if not table["equal"]] or found


def odd_database(workspace: Path) -> WholeStack:
    """Return a running stack with an empty database of its own server as the source."""
    admin = load(workspace).required("postgres.dsn")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {SOURCE}".encode())
    return WholeStack(workspace, make_conninfo(admin, dbname=SOURCE))
