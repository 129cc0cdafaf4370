"""The little of HTTP that the append path needs, on bare ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect

from service.problems import CONTENT_TYPE, Problem, refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; headers without the length."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def header(scope: Scope, name: bytes) -> str | None:
    """Return a request header; names are in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None


def category_header(*streams: str) -> dict[str, str]:
    """Return the header that names the categories of streams.

    A name such as `shopping-cart-1` is one of the category `shopping`, which its writer may not
    have meant.
    """
    # By the name alone: that of a metadata stream may be longer than what callers may name.
    categories = dict.fromkeys(stream.partition("-")[0] for stream in streams)
    return {"penstock-category": ", ".join(categories)}


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """Return the request's body, or refuse with 413 as soon as it is known to be too large.

    Raises `ClientDisconnect` where it ended before its end: a part of a body can look whole.
    """
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        more = message.get("more_body", False)
    return b"".join(chunks)


async def respond(
    send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole answer; JSON unless `headers` name another content type."""
    given = list(headers)
    if not any(name == b"content-type" for name, _ in given):
        given.append((b"content-type", JSON))
    given.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": given})
    await send({"type": "http.response.body", "body": body})


def problem_answer(problem: Problem) -> Answer:
    """Return a problem document as an answer."""
    headers = [(name.encode(), value.encode()) for name, value in problem.headers]
    headers.append((b"content-type", CONTENT_TYPE.encode()))
    return Answer(problem.status, problem.body(), tuple(headers))


def _too_large(limit_bytes: int) -> Exception:
    return refusal(
        413,
        "body-too-large",
        "The body is too large",
        f"more than {limit_bytes} bytes",
        "Split the events over several requests, or raise service.max_body_bytes.",
        ("connection", "close"),
    )
