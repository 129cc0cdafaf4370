# Written by generate_sync.py from penstock_client/_async/reading.py: edit that file.
"""Reading to an end: pages or lines, going on by position or version where a connection broke."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from penstock_client._sync.connection import Connection
from penstock_client.errors import NotFound, PenstockError
from penstock_client.lines import Lines
from penstock_client.model import Direction, Event
from penstock_client.wire import event_of, event_page_of, load, segment, stream_page_of

NDJSON = "application/x-ndjson"
PAGE = 1_000
_SILENCE_S = 60.0


def stream_events(
    connection: Connection,
    stream: str,
    *,
    from_version: int | None,
    direction: Direction,
    limit: int | None,
) -> Generator[Event, None, None]:
    """Yield a stream's events page by page; nothing for one that does not exist."""
    left = limit
    place = from_version
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        params: dict[str, Any] = {"direction": direction, "limit": size}
        if place is not None:
            params["from_version"] = place
        try:
            document = connection.call("GET", f"/v1/streams/{segment(stream)}", params=params)
        except NotFound:
            return
        page = stream_page_of(document)
        yield from page.events
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


def all_events(
    connection: Connection, *, after: int, filters: Mapping[str, str], limit: int | None
) -> Generator[Event, None, None]:
    """Yield events up to the head: in pages up to a limit, over one long answer without."""
    if limit is None:
        feed = _streamed(connection, after=after, filters=filters)
    else:
        feed = _paged(connection, after=after, filters=filters, limit=limit)
    with closing(feed) as events:
        yield from events


def _paged(
    connection: Connection, *, after: int, filters: Mapping[str, str], limit: int
) -> Generator[Event, None, None]:
    left = limit
    while left > 0:
        params = {"after": after, "limit": min(PAGE, left), **filters}
        page = event_page_of(connection.call("GET", "/v1/events", params=params))
        yield from page.events
        left -= len(page.events)
        if page.next_after >= page.head or page.next_after <= after:
            return
        after = page.next_after


def _streamed(
    connection: Connection, *, after: int, filters: Mapping[str, str]
) -> Generator[Event, None, None]:
    failures = 0
    while True:
        params = {"after": after, **filters}
        try:
            with (
                connection.pieces(
                    "/v1/events", params=params, headers={"accept": NDJSON}, silence_s=_SILENCE_S
                ) as (_, pieces),
                closing(lines_of(pieces)) as lines,
            ):
                for line in lines:
                    event = event_of(load(line))
                    after, failures = event.position, 0
                    yield event
            return
        except PenstockError as error:
            failures += 1
            if not error.worth_a_retry or failures >= connection.retry.attempts:
                raise
            connection.pause(failures, error)


def lines_of(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the lines of a body that are not empty."""
    lines = Lines()
    for piece in pieces:
        for line in lines.feed(piece):
            if line:
                yield line
    if rest := lines.end():
        yield rest
