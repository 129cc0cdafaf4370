"""What one request may hold, and the checks that cost nothing while a body is small."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from apps.service.problems import refusal
from kernel.errors import InvalidRequest

_TEXTS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')
_TO_BRACES: Final = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Bounds of one request: events in all, bytes of one event as JSON, nesting, tags an event."""

    events: int = 1_000
    event_bytes: int = 256 * 1024
    json_depth: int = 64
    tags: int = 16


def check_depth(body: bytes, at_most: int) -> None:
    """Refuse JSON that nests deeper than `at_most`. `body` was parsed already: it is valid."""
    if body.count(b"{") + body.count(b"[") <= at_most:
        return
    braces = _TEXTS.sub(b"", body).translate(None, _NO_BRACKETS).translate(_TO_BRACES)
    for _ in range(at_most):
        # Takes the innermost level away, everywhere at once.
        braces = braces.replace(b"{}", b"")
        if not braces:
            return
    raise InvalidRequest(
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
        size = len(orjson.dumps(event))
        if size > at_most:
            raise refusal(
                413,
                "event-too-large",
                "An event is too large",
                f"{place}.events[{index}]: {size} bytes, at most {at_most} are allowed",
                "Keep large content elsewhere and name it in the event, "
                "or raise service.max_event_bytes.",
            )
