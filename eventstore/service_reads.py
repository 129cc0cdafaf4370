"""Reads of a store through its HTTP service that take more than one page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import orjson

from eventstore.service_client import ServiceClient

_PAGE = 1_000


def read_stream(
    client: ServiceClient, stream: str, from_version: int | None, limit: int, *, backward: bool
) -> dict[str, Any]:
    """Return `limit` events of a stream from a version on, as one page of the service has them."""
    path = f"/v1/streams/{quote(stream, safe='')}"
    direction = "backward" if backward else "forward"
    events: list[Any] = []
    while True:
        wanted = min(limit - len(events), _PAGE)
        page = client.get(path, from_version=from_version, direction=direction, limit=wanted)
        events += page["events"]
        last = events[-1]["version"] if events else 0
        ended = last == 0 if backward else last == page["version"]
        if not page["events"] or ended or len(events) == limit:
            return {**page, "events": events}
        from_version = last - 1 if backward else last + 1


def read_all(
    client: ServiceClient, after: int, limit: int, **filters: str | None
) -> dict[str, Any]:
    """Return `limit` events of the whole store behind a position, and where to go on."""
    events: list[Any] = []
    while True:
        page = client.get(
            "/v1/events", after=after, limit=min(limit - len(events), _PAGE), **filters
        )
        events += page["events"]
        after = page["next_after"]
        if len(events) >= limit or after >= page["head"]:
            return {"events": events, "head": page["head"], "next_after": after}


def messages(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Yield (event name, document) of each server-sent message; the name of an event is empty."""
    name, data = "", ""
    for line in lines:
        if not line:
            if data:
                yield name, orjson.loads(data)
            name, data = "", ""
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = line[6:]


def stream_names(
    client: ServiceClient, limit: int, *, after: str | None, **filters: str | None
) -> dict[str, Any]:
    """Return `limit` streams behind a name, each with its last event, and where to go on."""
    streams: list[dict[str, Any]] = []
    while True:
        wanted = min(limit - len(streams), _PAGE)
        page = client.get("/v1/streams", after=after, limit=wanted, **filters)
        streams += page["streams"]
        after = page["next_after"]
        if after is None or len(streams) >= limit:
            return {"streams": streams, "next_after": after}
