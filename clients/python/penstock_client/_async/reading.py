"""Reading to an end: pages or lines, going on by position or version where a connection broke."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

from penstock_client._async.connection import AsyncConnection
from penstock_client.errors import NotFound, PenstockError
from penstock_client.lines import Lines
from penstock_client.model import Direction, Event
from penstock_client.wire import event_of, event_page_of, load, segment, stream_page_of

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
    """Yield a stream's events page by page; nothing for one that does not exist."""
    left = limit
    place = from_version
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        params: dict[str, Any] = {"direction": direction, "limit": size}
        if place is not None:
            params["from_version"] = place
        try:
            document = await connection.call("GET", f"/v1/streams/{segment(stream)}", params=params)
        except NotFound:
            return
        page = stream_page_of(document)
        for event in page.events:
            yield event
        if not page.events:
            return
        last = page.events[-1].version
        if left is not None:
            left -= len(page.events)
        if direction == "forward":
            if last >= page.version:
                return
            place = last + 1
        else:
            if last == 0:
                return
            place = last - 1


async def all_events(
    connection: AsyncConnection, *, after: int, filters: Mapping[str, str], limit: int | None
) -> AsyncGenerator[Event, None]:
    """Yield events up to the head: in pages up to a limit, over one long answer without."""
    if limit is None:
        feed = _streamed(connection, after=after, filters=filters)
    else:
        feed = _paged(connection, after=after, filters=filters, limit=limit)
    async with aclosing(feed) as events:
        async for event in events:
            yield event


async def _paged(
    connection: AsyncConnection, *, after: int, filters: Mapping[str, str], limit: int
) -> AsyncGenerator[Event, None]:
    left = limit
    while left > 0:
        params = {"after": after, "limit": min(PAGE, left), **filters}
        page = event_page_of(await connection.call("GET", "/v1/events", params=params))
        for event in page.events:
            yield event
        left -= len(page.events)
        if page.next_after >= page.head or page.next_after <= after:
            return
        after = page.next_after


async def _streamed(
    connection: AsyncConnection, *, after: int, filters: Mapping[str, str]
) -> AsyncGenerator[Event, None]:
    failures = 0
    while True:
        params = {"after": after, **filters}
        try:
            async with (
                connection.pieces(
                    "/v1/events", params=params, headers={"accept": NDJSON}, silence_s=_SILENCE_S
                ) as (_, pieces),
                aclosing(lines_of(pieces)) as lines,
            ):
                async for line in lines:
                    event = event_of(load(line))
                    after, failures = event.position, 0
                    yield event
            return
        except PenstockError as error:
            failures += 1
            if not error.worth_a_retry or failures >= connection.retry.attempts:
                raise
            await connection.pause(failures, error)


async def lines_of(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a body that are not empty."""
    lines = Lines()
    async for piece in pieces:
        for line in lines.feed(piece):
            if line:
                yield line
    if rest := lines.end():
        yield rest
