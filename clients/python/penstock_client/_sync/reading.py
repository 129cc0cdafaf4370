# Written by generate_sync.py from penstock_client/_async/reading.py: edit that file.
"""Reading to an end, a line an event; a broken connection is made again from the last one."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

from penstock_client._sync.connection import Connection
from penstock_client.errors import NotFound, PenstockError
from penstock_client.lines import Lines
from penstock_client.model import Direction, Event
from penstock_client.wire import event_of, load, segment

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
    """Yield a stream's events over one long answer; nothing for one that does not exist."""
    step = 1 if direction == "forward" else -1
    place, left = from_version, limit
    failures = 0
    while left != 0 and place != -1:
        asked = {"direction": direction, "from_version": place, "limit": left}
        params = {name: value for name, value in asked.items() if value is not None}
        try:
            feed = _events(connection, f"/v1/streams/{segment(stream)}", params)
            with closing(feed) as events:
                for event in events:
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
            connection.pause(failures, error)


def all_events(
    connection: Connection, *, after: int, filters: Mapping[str, str], limit: int | None
) -> Generator[Event, None, None]:
    """Yield events up to the head of now, over one long answer."""
    left = limit
    failures = 0
    while left != 0:
        params = {"after": after, **filters, **({} if left is None else {"limit": left})}
        try:
            with closing(_events(connection, "/v1/events", params)) as events:
                for event in events:
                    after, failures = event.position, 0
                    left = None if left is None else left - 1
                    yield event
            return
        except PenstockError as error:
            failures += 1
            if not error.worth_a_retry or failures >= connection.retry.attempts:
                raise
            connection.pause(failures, error)


def _events(
    connection: Connection, path: str, params: Mapping[str, Any]
) -> Generator[Event, None, None]:
    with (
        connection.pieces(
            path, params=params, headers={"accept": NDJSON}, silence_s=_SILENCE_S
        ) as (_, pieces),
        closing(lines_of(pieces)) as lines,
    ):
        for line in lines:
            yield event_of(load(line))


def lines_of(pieces: Iterator[bytes]) -> Generator[bytes, None, None]:
    """Yield the lines of a body that are not empty."""
    lines = Lines()
    for piece in pieces:
        for line in lines.feed(piece):
            if line:
                yield line
    if rest := lines.end():
        yield rest
