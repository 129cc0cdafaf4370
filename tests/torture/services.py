"""Service processes: started, killed, stopped for a while, started again."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psycopg

from kernel.errors import Unavailable
from tests.torture.database import free_port

_READY_S = 60.0
_PAUSE_S = 0.05
_MOST_BYTES = 4 * 2**30
"""Address space of a service: ten times what it takes under this load."""


@dataclass(slots=True)
class Service:
    """One `python -m apps.service`. Its port stays the same over its lives."""

    folder: Path
    dsn: str
    port: int = field(default_factory=free_port)
    starts: int = 0
    _process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Its process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the process; it may take a while until it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        with (self.folder / "service.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "apps.service"],
                env={
                    **os.environ,
                    "PENSTOCK_WORKSPACE": str(self.folder),
                    "PENSTOCK_POSTGRES_DSN": self.dsn,
                    # Nobody answers there: all types are known.
                    "PENSTOCK_REGISTRY_URL": "http://127.0.0.1:1",
                    "PENSTOCK_SERVICE_PORT": str(self.port),
                    # The judge asks each service for its reasons and figures; nobody else calls.
                    "PENSTOCK_SERVICE_AUTH": "none",
                    "PENSTOCK_STORAGE_MIN_FREE_BYTES": "0",
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=_bounded,
            )

    def send(self, number: int) -> None:
        """Send a signal; nothing happens when the process is gone."""
        if self.pid is not None and self._process is not None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it, stopped or not, and wait for its end."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()


def _bounded() -> None:
    """Let a service that grows without end say where, in its log, before the machine is full."""
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))


class Fleet:
    """All services of a run on one database."""

    def __init__(self, folder: Path, dsn: str, count: int, rng: random.Random) -> None:
        self._dsn = dsn
        self._rng = rng
        self.services = [
            Service(folder=folder / f"service-{number}", dsn=dsn) for number in range(1, count + 1)
        ]
        self._best = self.services[0]

    def start(self) -> None:
        """Start all."""
        for service in self.services:
            service.start()

    def kill(self) -> None:
        """Kill all that run."""
        for service in self.services:
            service.kill()

    def best(self) -> Service:
        """Return the service that has last acknowledged an append."""
        return self._best

    def worked(self, service: Service) -> None:
        """Note that a service has acknowledged an append."""
        self._best = service

    def failed(self, service: Service) -> None:
        """Note that a service did not: let the next request go to another one."""
        if service is self._best:
            self._best = self.any()

    def any(self) -> Service:
        """Return any service."""
        return self._rng.choice(self.services)

    async def writer(self) -> Service | None:
        """Return the service that holds the append lease, None while nobody of these does."""
        try:
            async with await psycopg.AsyncConnection.connect(
                self._dsn, connect_timeout=5
            ) as connection:
                cursor = await connection.execute("SELECT holder FROM es.lease")
                row = await cursor.fetchone()
        except psycopg.Error:
            return None
        pids = {str(service.pid): service for service in self.services}
        words = str(row[0]).split("/") if row is not None else []
        return pids.get(words[1]) if len(words) > 1 else None

    async def ready(self) -> None:
        """Wait until a service takes appends. Raises `Unavailable` when none does."""
        end = asyncio.get_running_loop().time() + _READY_S
        why = "none has answered"
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            while asyncio.get_running_loop().time() < end:
                for service in self.services:
                    try:
                        answer = await client.get(f"{service.url}/health/ready")
                    except httpx.TransportError:
                        continue
                    if answer.status_code == 200:
                        self._best = service
                        return
                    why = answer.text
                await asyncio.sleep(_PAUSE_S)
        raise Unavailable(
            f"no service is ready within {_READY_S:.0f} s: {why}",
            remedy=f"See {self.services[0].folder / 'service.log'}",
        )

    async def whole(self) -> bool:
        """Return whether all services are up: one takes appends, the others could take over."""
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            for service in self.services:
                try:
                    answer = await client.get(f"{service.url}/health/ready")
                except httpx.TransportError:
                    return False
                if answer.status_code != 200:
                    reasons = {each["part"] for each in answer.json()["reasons"]}
                    if reasons != {"appender"}:
                        return False
        return True

    async def idle(self) -> None:
        """Wait until no service has appends in its queue: what is undecided by then never comes."""
        end = asyncio.get_running_loop().time() + _READY_S
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            for service in self.services:
                while service.pid is not None and asyncio.get_running_loop().time() < end:
                    try:
                        answer = await client.get(f"{service.url}/metrics")
                    except httpx.TransportError:
                        pass
                    else:
                        if "penstock_append_queue_events 0.0" in answer.text:
                            break
                    await asyncio.sleep(_PAUSE_S)
