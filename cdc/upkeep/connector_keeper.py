"""Keeps the connectors running: the outbox, and every source that the workspace declares.

Desired state is the workspace (`sources/*.toml`), the event store, and what there is in the
databases: a table that is made while all runs and matches a pattern joins. What is missing or
differs is applied; a connector that failed is restarted, each time after a longer pause; a paused
one is left alone, one whose slot is lost stands still. The catalog learns which tables are captured
and what their keys are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

import psycopg

from cdc import outbox
from cdc.connect import ConnectClient, ConnectorStatus, refuse_too_large
from cdc.connectors import replication_name
from cdc.database import connected
from cdc.declarations import FILES
from cdc.replication import withdraw_refusing
from cdc.scope import fingerprint
from cdc.site import CaptureSite
from cdc.sources import Source, load_all
from cdc.upkeep.lifecycle import record_capture, start
from cdc.upkeep.slot_guard import SlotGuard, SlotMetrics
from kernel.errors import Misconfigured, NotFound, PenstockError, Unavailable, cause_and_fix
from kernel.loops import Loop
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import CAPTURE, DROPPED, DeployedCatalog
from schemas.identifiers import OUTBOX

log = logging.getLogger("penstock.connectors")

LOOK_S = 2.0
START_S = 20.0
"""How long one connector may hold up the others; one that takes longer is looked at again."""
PAUSES_S = (2.0, 5.0, 15.0, 60.0)
STEADY_LOOKS = 30
"""How many looks a connector runs through before its failures are forgotten: one that fails a
moment after each start runs at most looks."""
GOES_LOOKS = 5
"""How many looks it runs through before it is not called failing any more, until it fails again."""
FAILING = 3
"""So many failures without a steady time between them make it one that fails over and over."""
BEGUN_S, BEGUN_LOOK_S = 1.0, 0.1
"""How long, and how often, to look whether a restart has begun. Kafka Connect answers before it
carries one out, which takes longer while its workers meet anew."""
SLOW_LOOKS = 3
"""Looks, a pause between two of them, at which a restart may still be to come: 22 s in all."""
_STARTED = b"SELECT pg_postmaster_start_time()::text AS started"
LOOKS = "keeper"
"""Stands for all connectors, when they cannot be looked after."""


class ConnectorKeeper:
    """Looks after connectors in a thread of its own. `states` says how each is, for health."""

    def __init__(self, site: CaptureSite, lake: Lake, slots: SlotMetrics) -> None:
        self._site = site
        self._placement = site.placement
        self._dsn = site.store_dsn
        self._lake = lake
        self._deployed = DeployedCatalog(lake, Tables())
        self._guard = SlotGuard(site, lake, slots)
        self._ensured: dict[str, object] = {}
        self._failures: dict[str, int] = {}
        self._crashes: dict[str, int] = {}
        self._reasons: dict[str, str] = {}
        self._asked: dict[str, str | None] = {}
        self._restarted: dict[str, str] = {}
        self._servers: dict[str, str] = {}
        self._ran_on: dict[str, str | None] = {}
        self._steady: dict[str, int] = {}
        self._wait: dict[str, float] = {}
        self._sources: tuple[Source, ...] = ()
        self.states: dict[str, str] = {}
        self.loop = Loop("connectors")

    def run(self, stop: threading.Event) -> None:
        """Look after connectors until `stop` is set."""
        while not stop.is_set():
            try:
                with (
                    self.loop.working("a look at the connectors"),
                    ConnectClient(self._site.connect_url) as connect,
                ):
                    self.look(connect)
                self.states.pop(LOOKS, None)
            except Exception as error:
                # Connectors that run go on without us; what we could not do is tried again.
                self.states[LOOKS] = cause_and_fix(error, most=800)
                log.error("connectors: %s", error, exc_info=error)
            stop.wait(LOOK_S)

    @property
    def alarms(self) -> Mapping[str, str]:
        """Sources whose slot keeps too much WAL, each with its numbers."""
        return dict(self._guard.alarms)

    @property
    def failing(self) -> Mapping[str, str]:
        """Connectors that fail over and over, each with the last reason; not ready with one."""
        return {
            name: self._reasons.get(name, "")
            for name, n in self._crashes.items()
            if n >= FAILING and self._steady.get(name, 0) < GOES_LOOKS
        }

    def forget_pauses(self) -> None:
        """Look at everything at the next look, without waiting for what failed before."""
        self._wait.clear()

    def look(self, connect: ConnectClient) -> None:
        """Bring every connector to its desired state; what fails is noted and tried later."""
        if self._store_exists():
            self._keep(OUTBOX, None, connect)
        sources = {source.name: source for source in self._declared()}
        for name, source in sources.items():
            self._keep(name, source, connect)
        if FILES not in self.states:
            self._drop_missing(sources)

    def _declared(self) -> tuple[Source, ...]:
        """Return the declared sources. A file that is wrong changes nothing until it is mended."""
        try:
            self._sources = load_all(self._site.folder)
            self.states.pop(FILES, None)
        except PenstockError as error:
            self.states[FILES] = f"{error.message} | fix: {error.remedy}"
        return self._sources

    def _keep(self, name: str, source: Source | None, connect: ConnectClient) -> None:
        if self._wait.get(name, 0) > 0:
            self._wait[name] -= LOOK_S
            self._see(name, connect)
            return
        self._restarted.pop(name, None)
        try:
            desired = self._look_at(name, source, connect)
            if self._ensured.get(name) != desired:
                self._asked.pop(name, None)
                status = self._ensure(source, connect)
                # As it was before: what changed meanwhile, by DDL or by this itself, is applied
                # at the next look.
                self._ensured[name] = desired
            else:
                status = connect.status(f"{self._site.name}-{name}")
                if status.failed:
                    self._restart(name, status, connect)
                self._asked.pop(name, None)
        except NotFound as error:
            self._ensured.pop(name, None)
            self._asked.pop(name, None)
            self._note(name, error)
        except PenstockError as error:
            self._note(name, error)
        else:
            self._runs(name)
            self._ran_on[name] = self._servers.get(name)
            self.states[name] = status.connector.lower()

    def _see(self, name: str, connect: ConnectClient) -> None:
        """Say how one is that was restarted, in the pause before it may be restarted again."""
        failed = self._restarted.get(name)
        if failed is None:
            return
        with suppress(PenstockError):
            status = connect.status(f"{self._site.name}-{name}")
            self._steady[name] = 0 if status.failed else self._steady.get(name, 0) + 1
            self.states[name] = failed if status.failed else status.connector.lower()

    def _restart(self, name: str, status: ConnectorStatus, connect: ConnectClient) -> None:
        """Restart what failed, and raise `Unavailable`, which is a crash only the first time.

        What is still failed because Connect has not come to the restart has not crashed again; what
        ran on a server that has been started since was ended with it, and goes on by itself.
        """
        refuse_too_large(status)
        connect.restart(status.name)
        text = f"{status.name} failed and is restarted: {status.cause}"
        waits = name in self._asked and self._asked[name] == status.cause
        self._asked[name] = status.cause
        limit = time.monotonic() + BEGUN_S
        with suppress(PenstockError):
            while time.monotonic() < limit:
                if not connect.status(status.name).failed:
                    del self._asked[name]
                    break
                time.sleep(BEGUN_LOOK_S)
        server = self._servers.get(name)
        ended = name in self._ran_on and self._ran_on[name] != server
        self._ran_on[name] = server
        self._restarted[name] = text
        if ended or (waits and self._failures.get(name, 0) < SLOW_LOOKS):
            raise Unavailable(text)
        raise Unavailable(text, connector=status.name)

    def _look_at(self, name: str, source: Source | None, connect: ConnectClient) -> object:
        """Watch the slot; return what decides on the connector.

        When that differs from last time, everything is applied again.
        """
        dsn = self._dsn if source is None else source.full_dsn(self._site.folder)
        slot = replication_name(self._placement.workspace, name)
        with connected(dsn) as connection:
            self._servers[name] = str(connection.execute(_STARTED).fetchall()[0]["started"])
            self._guard.look(name, connection, connect)
            return source, () if source is None else fingerprint(source, connection, slot)

    def _note(self, name: str, error: PenstockError) -> None:
        failures = self._failures.get(name, 0)
        self._failures[name] = failures + 1
        self._wait[name] = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        self.states[name] = f"{error.message} | fix: {error.remedy}"
        self._steady[name] = 0
        if name in self._restarted:
            self._restarted[name] = self.states[name]
        if "connector" in error.fields:
            self._crashes[name] = self._crashes.get(name, 0) + 1
            self._reasons[name] = error.message

    def _runs(self, name: str) -> None:
        """Note a look at which all was well; failures are forgotten after enough of them."""
        self._steady[name] = self._steady.get(name, 0) + 1
        if self._steady[name] >= STEADY_LOOKS or not self._crashes.get(name):
            for known in (self._failures, self._crashes, self._reasons):
                known.pop(name, None)

    def _ensure(self, source: Source | None, connect: ConnectClient) -> ConnectorStatus:
        if source is None:
            return outbox.ensure(self._dsn, self._placement, connect)
        try:
            return start(self._site, source, connect, timeout_s=START_S).connector
        except Misconfigured:
            self._spare(source)
            raise

    def _spare(self, source: Source) -> None:
        """Let the application go on with the tables of a source that cannot."""
        name = replication_name(self._placement.workspace, source.name)
        dsn = source.full_dsn(self._site.folder)
        with suppress(PenstockError), connected(dsn) as connection:
            for table in withdraw_refusing(connection, name):
                log.warning("%s is published no more: nobody could change it meanwhile", table)

    def _drop_missing(self, sources: Mapping[str, Source]) -> None:
        for entry in self._deployed.entries():
            live = entry.kind == CAPTURE and entry.status != DROPPED
            if live and entry.name not in sources:
                record_capture(self._lake, entry.name, DROPPED, {})
        for name in set(self.states) - set(sources) - {OUTBOX, FILES, LOOKS}:
            self.states.pop(name)
            self._forget(name)
            self._guard.forget(name)

    def _forget(self, name: str) -> None:
        """Forget what was known of a connector that is not there any more."""
        for known in (self._ensured, self._failures, self._crashes, self._reasons, self._asked):
            known.pop(name, None)
        for also in (self._wait, self._steady, self._servers, self._ran_on, self._restarted):
            also.pop(name, None)

    def _store_exists(self) -> bool:
        try:
            with psycopg.connect(self._dsn, connect_timeout=5) as connection:
                row = connection.execute("SELECT to_regclass('es.events') IS NOT NULL").fetchone()
        except psycopg.Error as error:
            self.states[OUTBOX] = f"the event store's database does not answer: {error}"
            return False
        return row is not None and bool(row[0])
