"""What one request may hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel.errors import InvalidRequest
from schemas.json_text import dump
from service.problems import refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Bounds of one request: events in all, bytes of one event as JSON, nesting, tags an event."""

    events: int = 1_000
    event_bytes: int = 256 * 1024
    json_depth: int = 64
    tags: int = 16


def check_depth(document: object, body: bytes, at_most: int) -> None:
    """Refuse a document, parsed from `body`, whose lists and objects nest deeper than `at_most`."""
    if body.count(b"{") + body.count(b"[") <= at_most:
        return
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(at_most):
        if not level:
            return
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
    if level:
        raise too_deep(at_most)


def too_deep(at_most: int) -> InvalidRequest:
    """Return the refusal of a document that nests deeper than `at_most`."""
    return InvalidRequest(
        f"$: nested deeper than {at_most} levels",
        remedy="Flatten the data, or raise service.max_json_depth.",
    )


def check_count(events: int, at_most: int) -> None:
    """Refuse a request of too many events."""
    if events > at_most:
        raise InvalidRequest(
            f"$: {events} events in one request, at most {at_most} are allowed",
            remedy="Send several requests, POST /v1/import without bound, "
            "or raise service.max_events.",
        )


def check_sizes(body_bytes: int, events: Sequence[object], place: str, at_most: int) -> None:
    """Refuse an event that is too large by itself."""
    if body_bytes <= at_most:
        return
    for index, event in enumerate(events):
        size = len(dump(event))
        if size > at_most:
            raise refusal(
                413,
                "event-too-large",
                "An event is too large",
                f"{place}.events[{index}]: {size} bytes, at most {at_most} are allowed",
                "Keep large content elsewhere and name it in the event, "
                "or raise service.max_event_bytes.",
            )
