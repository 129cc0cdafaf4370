"""The HTTP server around one service's parts."""

from __future__ import annotations

from socket import socket

import uvicorn

from service.app import build
from service.protocol import protocol_of
from service.runtime import Runtime

_GRACE_S = 20


class Server(uvicorn.Server):
    """Lets subscribers go before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, runtime: Runtime) -> None:
        super().__init__(config)
        self._runtime = runtime

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """End feeds, then stop as uvicorn does."""
        self._runtime.end_feeds()
        await super().shutdown(sockets)


def server_of(runtime: Runtime) -> Server:
    """Return a server that starts `runtime` when it runs, and stops it at its end."""
    edge = build(runtime)
    config = runtime.config
    return Server(
        uvicorn.Config(
            edge,
            host=config.host,
            port=config.port,
            loop="uvloop",
            http=protocol_of(edge, config.clients),
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        ),
        runtime,
    )
