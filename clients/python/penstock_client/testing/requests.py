"""What all routes need of a request and an answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import httpx

from penstock_client.errors import (
    CommandRefused,
    Conflict,
    Incompatible,
    NotFound,
    Overloaded,
    PenstockError,
    Refused,
    StorageFull,
    StreamGone,
    Unauthorized,
    Unavailable,
)
from penstock_client.testing.bodies import Document

_STATUSES: tuple[tuple[type[PenstockError], int], ...] = (
    (Unauthorized, 401),
    (CommandRefused, 422),
    (Refused, 422),
    (NotFound, 404),
    (StreamGone, 410),
    (Conflict, 409),
    (Incompatible, 409),
    (Overloaded, 429),
    (StorageFull, 507),
    (Unavailable, 503),
    (PenstockError, 500),
)


def body_of(request: httpx.Request) -> Document:
    """Return a request's JSON object."""
    try:
        body = json.loads(request.content or b"{}", parse_float=_fraction)
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("$: expected an object")
    return body


def _fraction(text: str) -> float | str:
    """Return a number as a float that is the same number, else as the text that a decimal takes."""
    number = float(text)
    return number if Decimal(repr(number)) == Decimal(text) else text


def reply(
    document: object, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> httpx.Response:
    """Return a JSON answer."""
    return httpx.Response(status, json=document, headers=headers)


def problem(error: PenstockError) -> httpx.Response:
    """Return the problem document of an error."""
    status = error.status or next(s for kind, s in _STATUSES if isinstance(error, kind))
    document: dict[str, Any] = dict(error.fields) | {
        "type": error.type,
        "title": type(error).__name__,
        "status": status,
        "detail": error.detail,
        "remedy": error.remedy or "See the detail.",
    }
    headers = {"content-type": "application/problem+json"}
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        headers["retry-after"] = str(round(error.retry_after_s))
    return httpx.Response(status, json=document, headers=headers)


def whole(
    request: httpx.Request, name: str, default: int, *, least: int, most: int | None = None
) -> int:
    """Return a whole number of the query. Raises `Refused` out of range."""
    text = request.url.params.get(name, str(default))
    value = int(text) if text.isascii() and text.isdigit() else -1
    if value < least or (most is not None and value > most):
        raise Refused(f"query.{name}: {text!r} is out of range")
    return value


def waits_s(request: httpx.Request) -> float:
    """Return how long a consumer of a group is ready to wait for its first event."""
    if not request.url.path.endswith("/next"):
        return 0.0
    return float(request.url.params.get("wait", 0.0))


def gives_nothing(answer: httpx.Response) -> bool:
    """Return whether an answer to a consumer has no events."""
    return answer.status_code == 200 and not json.loads(answer.content)["events"]
