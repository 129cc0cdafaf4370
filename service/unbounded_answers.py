"""Answers without a known length to clients of HTTP/1.0, which read no chunks (RFC 9112, 6.1).

The end of the connection ends them. One that is broken off must not look whole for that: until its
last part is given to the connection, whatever ends this resets it, the end of the process too.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.connections import reset_when_closed
from service.http import Send


def until_close(cycle: RequestResponseCycle, send: Send) -> Send:
    """Return what sends an answer as it is, and one without a length until the connection ends.

    uvicorn ends each connection of HTTP/1.0 behind its answer, and knows chunks or a length alone:
    each part is sent as what is left of one.
    """
    bounded = True

    async def sent(message: MutableMapping[str, Any]) -> None:
        nonlocal bounded
        if message["type"] == "http.response.start":
            names = [name.lower() for name, _ in message.get("headers", ())]
            bounded = b"content-length" in names
            if not bounded:
                cycle.chunked_encoding = False
                reset_when_closed(cycle.transport, True)
        elif not bounded:
            cycle.expected_content_length = len(message.get("body", b""))
            if not message.get("more_body", False):
                reset_when_closed(cycle.transport, False)
        await send(message)

    return sent
