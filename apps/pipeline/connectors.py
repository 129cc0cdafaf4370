"""Keeps the connectors running: the outbox, and every source that the workspace declares.

Desired state is the workspace (`sources/*.toml`) and the event store. What is missing or differs
is applied; a connector that failed is restarted, each time after a longer pause; a paused one is
left alone. The catalog learns which tables are captured and what their keys are.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import psycopg

from apps.capture import placement_of, record_capture, tables_of
from apps.settings import Settings
from cdc import capture, outbox
from cdc.connect import ConnectClient, ConnectorStatus
from cdc.sources import Source, load_all
from kernel.errors import NotFound, PenstockError, Unavailable
from projections.log.layout import Lake
from projections.log.tables import Tables
from projections.runner.catalog import CAPTURE, DROPPED, LIVE, DeployedCatalog

LOOK_S = 2.0
PAUSES_S = (2.0, 5.0, 15.0, 60.0)
OUTBOX = "outbox"


class ConnectorKeeper:
    """Looks after connectors in a thread of its own. `states` says how each is, for health."""

    def __init__(self, settings: Settings, lake: Lake) -> None:
        self._settings = settings
        self._placement = placement_of(settings)
        self._dsn = settings.required("postgres.dsn")
        self._lake = lake
        self._deployed = DeployedCatalog(lake, Tables())
        self._ensured: dict[str, object] = {}
        self._failures: dict[str, int] = {}
        self._wait: dict[str, float] = {}
        self.states: dict[str, str] = {}

    def run(self, stop: threading.Event) -> None:
        """Look after connectors until `stop` is set."""
        while not stop.is_set():
            with ConnectClient(self._settings.required("connect.url")) as connect:
                self.look(connect)
            stop.wait(LOOK_S)

    def look(self, connect: ConnectClient) -> None:
        """Bring every connector to its desired state; what fails is noted and tried later."""
        if self._store_exists():
            self._keep(OUTBOX, "outbox", connect)
        sources = {source.name: source for source in load_all(self._settings.workspace)}
        for name, source in sources.items():
            self._keep(name, source, connect)
        self._drop_missing(sources)

    def _keep(self, name: str, desired: object, connect: ConnectClient) -> None:
        if self._wait.get(name, 0) > 0:
            self._wait[name] -= LOOK_S
            return
        try:
            if self._ensured.get(name) != desired:
                status = self._ensure(name, desired, connect)
                self._ensured[name] = desired
            else:
                status = connect.status(f"{self._settings.name}-{name}")
                if status.failed:
                    connect.restart(status.name)
                    raise Unavailable(f"{status.name} failed and is restarted: {status.cause}")
        except NotFound as error:
            self._ensured.pop(name, None)
            self._note(name, error)
        except PenstockError as error:
            self._note(name, error)
        else:
            self._failures[name] = 0
            self.states[name] = status.connector.lower()

    def _note(self, name: str, error: PenstockError) -> None:
        failures = self._failures.get(name, 0)
        self._failures[name] = failures + 1
        self._wait[name] = PAUSES_S[min(failures, len(PAUSES_S) - 1)]
        self.states[name] = f"{error.message} | fix: {error.remedy}"

    def _ensure(self, name: str, desired: object, connect: ConnectClient) -> ConnectorStatus:
        if not isinstance(desired, Source):
            return outbox.ensure(self._dsn, self._placement, connect)
        dsn = desired.full_dsn(self._settings.workspace)
        status = capture.ensure(desired, dsn, self._placement, connect)
        self._declare(desired, dsn)
        return status

    def _declare(self, source: Source, dsn: str) -> None:
        """Put the source's tables and keys into the catalog, if they are not there."""
        record_capture(self._lake, source.name, LIVE, tables_of(source, dsn))

    def _drop_missing(self, sources: Mapping[str, Source]) -> None:
        for entry in self._deployed.entries():
            live = entry.kind == CAPTURE and entry.status != DROPPED
            if live and entry.name not in sources:
                record_capture(self._lake, entry.name, DROPPED, {})
        for name in set(self.states) - set(sources) - {OUTBOX}:
            self.states.pop(name)
            self._ensured.pop(name, None)

    def _store_exists(self) -> bool:
        try:
            with psycopg.connect(self._dsn, connect_timeout=5) as connection:
                row = connection.execute("SELECT to_regclass('es.events') IS NOT NULL").fetchone()
        except psycopg.Error as error:
            self.states[OUTBOX] = f"the event store's database does not answer: {error}"
            return False
        return row is not None and bool(row[0])
