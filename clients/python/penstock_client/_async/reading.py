"""Reading to an end, a line an event; a broken connection is made again from the last one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from penstock_client._async.connection import AsyncConnection
from penstock_client.errors import NotFound, PenstockError
from penstock_client.lines import Lines
from penstock_client.model import Direction, Event
from penstock_client.wire import event_of, load, segment

NDJSON = "application/x-ndjson"
PAGE = 1_000
_SILENCE_S = 60.0


async def stream_events(
    connection: AsyncConnection,
    stream: str,
    *,
    from_version: int | None,
    direction: Direction,
    limit: int | None,
) -> AsyncGenerator[Event, None]:
    """Yield a stream's events over one long answer; nothing for one that does not exist."""
    step = 1 if direction == "forward" else -1
    place, left = from_version, limit
    failures = 0
    while left != 0 and place != -1:
        asked = {"direction": direction, "from_version": place, "limit": left}
        params = {name: value for name, value in asked.items() if value is not None}
        try:
            feed = _events(connection, f"/v1/streams/{segment(stream)}", params)
            async with aclosing(feed) as events:
                async for event in events:
                    place, failures = event.version + step, 0
                    left = None if left is None else left - 1
                    yield event
            return
        except NotFound:
            return
        except PenstockError as error:
            failures += 1
            if not error.worth_a_retry or failures >= connection.retry.attempts:
                raise
            await connection.pause(failures, error)


async def all_events(
    connection: AsyncConnection, *, after: int, filters: Mapping[str, str], limit: int | None
) -> AsyncGenerator[Event, None]:
    """Yield events up to the head of now, over one long answer."""
    left = limit
    failures = 0
    while left != 0:
        params = {"after": after, **filters, **({} if left is None else {"limit": left})}
        try:
            async with aclosing(_events(connection, "/v1/events", params)) as events:
                async for event in events:
                    after, failures = event.position, 0
                    left = None if left is None else left - 1
                    yield event
            return
        except PenstockError as error:
            failures += 1
            if not error.worth_a_retry or failures >= connection.retry.attempts:
                raise
            await connection.pause(failures, error)


async def _events(
    connection: AsyncConnection, path: str, params: Mapping[str, Any]
) -> AsyncGenerator[Event, None]:
    async with (
        connection.pieces(
            path, params=params, headers={"accept": NDJSON}, silence_s=_SILENCE_S
        ) as (_, pieces),
        aclosing(lines_of(pieces)) as lines,
    ):
        async for line in lines:
            yield event_of(load(line))


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a body that are not empty."""
    lines = Lines()
    async for piece in pieces:
        for line in lines.feed(piece):
            if line:
                yield line
    if rest := lines.end():
        yield rest
