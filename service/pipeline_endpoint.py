"""The small HTTP server of the pipeline: health and metrics, by the rules of `service.access`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from kernel.errors import PenstockError, Unavailable
from pipeline.process.metrics import ProcessMetrics
from service.access import Access
from service.standstills import of_pipeline

Health = Callable[[], tuple[bool, Mapping[str, object]]]
"""Says whether the pipeline is ready, and what state its parts are in."""

Sources = Callable[[], Sequence[Mapping[str, object]]]
"""Says what each captured source does now; it asks the databases, and may raise."""

MAX_CONNECTIONS = 64
_SILENCE_S = 10.0
_JSON = "application/json"


class Endpoint(ThreadingHTTPServer):
    """Serves so many connections at once, and closes what comes beyond."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        access: Access,
        metrics: ProcessMetrics,
        health: Health,
        sources: Sources,
    ) -> None:
        self.access, self.metrics = access, metrics
        self.health, self.sources = health, sources
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, where one is free."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Stay silent: a client that leaves is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint
    timeout = _SILENCE_S

    def do_GET(self) -> None:
        access, host = self.server.access, self.headers.get("host")
        bears = access.bears(self.headers.get("authorization", "").encode("latin-1"))
        if host is not None and not access.names(host):
            self._refuse(421, f"{host} is no name of this pipeline", "Use localhost.")
            return
        match self.path:
            case "/health/live":
                self._answer(200, _JSON, b'{"live":true}')
            case "/health/ready":
                ready, state = self.server.health()
                shown = {"ready": ready, **(_described(ready, state) if bears else {})}
                self._answer(200 if ready else 503, _JSON, _json(shown))
            case "/metrics" if bears:
                state = self.server.health()[1]
                still = ((each.component, each.name) for each in of_pipeline(state))
                self.server.metrics.standing_still(still)
                self.server.metrics.in_quarantine(state)
                self._answer(200, CONTENT_TYPE_LATEST, self.server.metrics.render())
            case "/sources" if bears:
                self._tell_sources()
            case "/metrics" | "/sources":
                self._refuse(
                    401,
                    "the Authorization header is missing or wrong",
                    "Send: Authorization: Bearer TOKEN. The workspace's: penstock token",
                )
            case _:
                self._refuse(404, "no such path", "See docs/reference/pipeline.md.")

    def _tell_sources(self) -> None:
        try:
            self._answer(200, _JSON, _json({"sources": self.server.sources()}))
        except PenstockError as error:
            self._refuse(503, error.message, error.remedy)

    def _refuse(self, status: int, detail: str, remedy: str) -> None:
        problem = {"title": detail, "status": status, "detail": detail, "remedy": remedy}
        self._answer(status, "application/problem+json", _json(problem))

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        if status == 401:
            self.send_header("WWW-Authenticate", "Bearer")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: probes come every second."""


def _described(ready: bool, state: Mapping[str, object]) -> dict[str, object]:
    """Put in front of a pipeline's state what it means: whether all moves, and what does not."""
    still = of_pipeline(state)
    status = "unready" if not ready else "degraded" if still else "ready"
    return {"status": status, "standing_still": [each.document() for each in still], **state}


def _json(document: object) -> bytes:
    return json.dumps(document, default=str).encode()


def serve(
    host: str,
    port: int,
    access: Access,
    metrics: ProcessMetrics,
    health: Health,
    sources: Sources = list,
) -> ThreadingHTTPServer:
    """Serve health, metrics and `/sources` from a thread; returns the server.

    Health's status is for everybody under one of our names; what it is about needs the token, as
    the others do: reasons quote databases, connectors and queries. Raises `Unavailable` where the
    port is taken.
    """
    try:
        server = Endpoint((host, port), access, metrics, health, sources)
    except OSError as error:
        raise Unavailable(
            f"{host}:{port} cannot be listened on: {error.strerror}",
            remedy="Set pipeline.port to a free one, or end what listens there.",
        ) from error
    threading.Thread(
        target=server.serve_forever,
        # A stop waits for as long as this.
        kwargs={"poll_interval": 0.1},
        name="metrics",
        daemon=True,
    ).start()
    return server
