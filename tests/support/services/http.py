"""Running HTTP services for tests: in a thread of this process, or as a process to kill."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import uvicorn.server

from schemas.registry import MemoryRegistry, SchemaRegistry
from service.access import Access
from service.config import ServiceConfig
from service.runtime import Runtime
from service.serving import server_of
from tests.support.services.waiting import until

_LIMITS = httpx.Limits(keepalive_expiry=2.0)
"""Connections that rest are let go before the service closes them, which it does after 5 s."""
_REST_S = 0.01
_sleep = asyncio.sleep


def _rest(seconds: float) -> Coroutine[Any, Any, None]:
    return _sleep(min(seconds, _REST_S))


# Servers of this process are begun and ended hundreds of times in a run, and each rests for a tenth
# of a second before it sees that it shall end, and as long again before it does.
uvicorn.server.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": _rest})


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def exchanged(http: httpx.Client, *pieces: bytes) -> bytes:
    """Send bytes and read until the service closes."""
    with socket.create_connection(("127.0.0.1", http.base_url.port), timeout=20) as client:
        for piece in pieces:
            client.sendall(piece)
        received = bytearray()
        while part := client.recv(65_536):
            received += part
    return bytes(received)


@contextmanager
def service_in_thread(
    dsn: str, *, registry: SchemaRegistry | None = None, **options: object
) -> Iterator[httpx.Client]:
    """Serve a store over real HTTP; yield a client once it is ready (or not, with `ready`)."""
    wait = options.pop("wait_ready", True)
    token = str(options.pop("token", ""))
    options.setdefault("access", Access(token=token))
    config = replace(
        ServiceConfig(dsn=dsn, registry_url="http://127.0.0.1:1", port=free_port()), **options
    )
    runtime = Runtime(config, registry if registry is not None else MemoryRegistry())
    server = server_of(runtime)
    thread = threading.Thread(target=server.run, name="service")
    thread.start()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{config.port}",
            headers=headers,
            timeout=30,
            verify=False,
            limits=_LIMITS,
        ) as client:
            until(lambda: server.started, "the server listens")
            if wait:
                until(lambda: client.get("/health/ready").status_code == 200, "it is ready")
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the service did not stop"


class ServiceProcess:
    """`python -m apps.service` as a process of its own."""

    def __init__(self, dsn: str, workspace: Path, *, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = workspace / "service.log"
        self._environment = {
            **os.environ,
            "PENSTOCK_WORKSPACE": str(workspace),
            "PENSTOCK_POSTGRES_DSN": dsn,
            # Nobody answers there: known types need no registry.
            "PENSTOCK_REGISTRY_URL": "http://127.0.0.1:1",
            "PENSTOCK_SERVICE_PORT": str(self.port),
            "PENSTOCK_STORAGE_MIN_FREE_BYTES": "0",
            "PENSTOCK_SERVICE_AUTH": "none",
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it takes appends."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "apps.service"],
                env=self._environment | dict(environment or {}),
                stdout=log,
                stderr=log,
            )
        with httpx.Client(base_url=self.url, verify=False) as client:
            until(
                lambda: self._ready(client), f"the service is ready, see {self.log}", deadline_s=60
            )

    def ended(self) -> bool:
        """Return whether the process is gone."""
        return self._process is None or self._process.poll() is not None

    def send(self, signal_number: int) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(signal_number)

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Stop it and return its exit code."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal_number)
        code = self._process.wait(60)
        self._process = None
        return code

    def _ready(self, client: httpx.Client) -> bool:
        assert not self.ended(), self.log.read_text()
        try:
            return client.get("/health/ready").status_code == 200
        except httpx.TransportError:
            return False
