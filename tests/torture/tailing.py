"""Tailing readers over server-sent events and over pages, on whichever service there is.

They go away and come back, and resume where they were.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson

from tests.torture.services import Fleet
from tests.torture.verification.history import Seen
from tests.torture.verification.readers import ReaderWatch

_SILENT_S = 20.0
"""Longer than a feed's heartbeat: what says nothing for so long is gone."""
_AGAIN_S = 0.1
_PAGE = 1_000
_LEAVE_AFTER = (500, 200_000)
"""A reader leaves a healthy feed after a number of events between these."""


def seen(document: dict[str, Any]) -> Seen:
    """Return an event as it was shown, by what identifies it."""
    return Seen(
        document["position"],
        int(document["id"].replace("-", ""), 16),  # Half the time of a `UUID`, and of millions.
        document["stream"],
        document["version"],
    )


async def follow_feed(watch: ReaderWatch, fleet: Fleet, rng: random.Random) -> None:
    """Follow all events over server-sent events until cancelled."""
    async with httpx.AsyncClient(trust_env=False, timeout=_SILENT_S) as client:
        while True:
            leave_at = watch.last + rng.randint(*_LEAVE_AFTER)
            try:
                async with client.stream(
                    "GET",
                    f"{fleet.any().url}/v1/events/subscribe",
                    headers={"last-event-id": str(watch.last)},
                ) as answer:
                    if answer.status_code == 200:
                        await _follow(watch, answer, leave_at)
            except httpx.TransportError:
                pass
            await asyncio.sleep(_AGAIN_S)


async def _follow(watch: ReaderWatch, answer: httpx.Response, leave_at: int) -> None:
    async for messages in _messages(answer.aiter_bytes()):
        for message in messages:
            if message.startswith(b"id: "):
                _, _, data = message.partition(b"\ndata: ")
                watch.saw(seen(orjson.loads(data)))
        if watch.last >= leave_at:
            return


async def _messages(chunks: AsyncIterator[bytes]) -> AsyncIterator[list[bytes]]:
    """Yield whole messages, as many as there are at a time."""
    rest = b""
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n\n")
        if whole:
            yield whole


async def follow_pages(watch: ReaderWatch, fleet: Fleet) -> None:
    """Follow all events page by page until cancelled."""
    async with httpx.AsyncClient(trust_env=False, timeout=_SILENT_S) as client:
        while True:
            events: list[dict[str, Any]] = []
            try:
                answer = await client.get(
                    f"{fleet.any().url}/v1/events",
                    params={"after": watch.last, "limit": _PAGE},
                )
                if answer.status_code == 200:
                    events = orjson.loads(answer.content)["events"]
            except httpx.TransportError:
                pass
            for event in events:
                watch.saw(seen(event))
            if len(events) < _PAGE:
                await asyncio.sleep(_AGAIN_S)
