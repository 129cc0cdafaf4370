"""`HEAD`: the head of what `GET` answers."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any, Final

from service.http import Send

_WITHOUT: Final = re.compile(
    r"/v1/(events/subscribe|projections/[^/]+/changes|subscriptions/[^/]+/next)"
)
"""Answers without end, and events that are handed out: those of a HEAD would be lost."""


def takes_head(path: str) -> bool:
    """Return whether a path that takes GET takes HEAD, too."""
    return _WITHOUT.fullmatch(path) is None


def head_alone(send: Send) -> Send:
    """Return what sends the head of an answer and ends it there, whatever else it has."""
    ended = False

    async def head(message: MutableMapping[str, Any]) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            await send(message)
        elif not ended:
            ended = True
            await send({"type": "http.response.body", "body": b""})

    return head
