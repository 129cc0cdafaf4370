"""Answers without end, in memory: server-sent events out of a `MemoryStore`."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator

import httpx

from penstock_client.testing.bodies import Document
from penstock_client.testing.memory import MemoryStore, Wanted

_SCANNED_AT_ONCE = 1_000


class Feed(httpx.SyncByteStream, httpx.AsyncByteStream):
    """One subscription. It ends when its client closes it, or breaks with `break_off`."""

    def __init__(self, store: MemoryStore, after: int, wanted: Wanted) -> None:
        self._store = store
        self._place = after
        self._wanted = wanted
        self._said = after
        self._caught_up = False
        self._broken = False
        self.ended = False

    def break_off(self) -> None:
        """Let the connection break."""
        self._broken = True

    def __iter__(self) -> Iterator[bytes]:
        woken = threading.Event()
        unlisten = self._store.listen(woken.set)
        try:
            yield b": penstock\n\n"
            while True:
                woken.clear()
                piece = self._take()
                if piece:
                    yield piece
                else:
                    woken.wait()
        finally:
            self.ended = True
            unlisten()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        unlisten = self._store.listen(lambda: _call(loop, woken))
        try:
            yield b": penstock\n\n"
            while True:
                woken.clear()
                piece = self._take()
                if piece:
                    yield piece
                else:
                    await woken.wait()
        finally:
            self.ended = True
            unlisten()

    def _take(self) -> bytes:
        """Return what there is to say now; nothing when one has to wait."""
        if self._broken:
            raise httpx.ReadError("the feed was broken off")
        said = []
        for event in list(self._store.after(self._place))[:_SCANNED_AT_ONCE]:
            self._place = event["position"]
            if self._wanted.passes(event):
                said.append(_message("", event["position"], event))
                self._said = self._place
            elif self._place - self._said >= _SCANNED_AT_ONCE:
                said.append(_message("checkpoint", self._place, {"position": self._place}))
                self._said = self._place
        if not self._caught_up and self._place >= self._store.head:
            self._caught_up = True
            said.append(_message("caught-up", self._place, {"position": self._place}))
        return b"".join(said)


def _call(loop: asyncio.AbstractEventLoop, woken: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(woken.set)


def _message(name: str, position: int, document: Document) -> bytes:
    event = f"event: {name}\n" if name else ""
    data = json.dumps(document, ensure_ascii=False)
    return f"{event}id: {position}\ndata: {data}\n\n".encode()
