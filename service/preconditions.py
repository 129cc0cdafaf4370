"""`If-Match` and `If-None-Match`: the version that a caller expects, as HTTP says it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from eventstore.store import Expected
from kernel.errors import InvalidRequest, VersionConflict
from kernel.positions import Version
from schemas.json_values import shown
from service.http import Answer, Send, respond
from service.problems import HttpRefusal, problem_of, refusal

_ETAG = re.compile(rb'"(0|[1-9]\d{0,17})"')
_TAGS = re.compile(r'(?:W/)?"([^"]*)"')
_MARKED = re.compile(r'(W/)?("[^"]*")')


def is_held(etag: str, if_none_match: Sequence[str]) -> bool:
    """Say whether a reader has a state already: `*`, or one of his tags is its `etag`, weak or not.

    The values of several headers of that name are one list (RFC 9110).
    """
    return any(
        header.strip() == "*" or etag.strip('"') in _TAGS.findall(header)
        for header in if_none_match
    )


def matching(if_match: str, send: Send, told: Callable[[Exception], Answer]) -> Send:
    """Return what sends an answer whose ETag is one of those that a reader asks for with `If-Match`
    (RFC 9110, 13.1.1: a weak one equals none), and 412, `told`, in place of any other answer.
    """
    refused = False

    async def sent(message: MutableMapping[str, Any]) -> None:
        nonlocal refused
        if message["type"] == "http.response.start" and message["status"] < 400:
            etag = dict(message.get("headers", ())).get(b"etag", b"").decode()
            strong = [tag for weak, tag in _MARKED.findall(if_match) if not weak]
            refused = if_match.strip() != "*" and etag not in strong
            if refused:
                answer = told(_other_state(if_match, etag))
                await respond(send, answer.status, answer.body, answer.headers)
        if not refused:
            await send(message)

    return sent


def _other_state(if_match: str, etag: str) -> HttpRefusal:
    return refusal(
        412,
        "version-conflict",
        "It is in another state",
        f"If-Match asks for {shown(if_match)}, and its ETag is {etag or 'none'}",
        "Read without If-Match; to be told of a new state alone, send If-None-Match.",
    )


def precondition_of(headers: Mapping[bytes, bytes]) -> Expected | None:
    """Read `If-Match: "3"`, `If-Match: *` (exists) and `If-None-Match: *` (does not exist)."""
    if_match = headers.get(b"if-match")
    if_none_match = headers.get(b"if-none-match")
    if if_match is not None and if_none_match is None:
        if if_match.strip() == b"*":
            return "stream_exists"
        match = _ETAG.fullmatch(if_match.strip())
        if match is not None:
            return Version(int(match.group(1)))
    elif if_none_match is not None and if_match is None:
        if if_none_match.strip() == b"*":
            return "no_stream"
    elif if_match is None:
        return None
    raise InvalidRequest(
        "If-Match or If-None-Match cannot be used as given",
        remedy='Send one of: If-Match: "3" (the ETag of the last version), If-Match: *, '
        "If-None-Match: *",
    )


def refuse_preconditions(headers: Mapping[bytes, bytes], remedy: str) -> None:
    """Refuse both headers where nothing asks for them: they would be passed over."""
    if b"if-match" in headers or b"if-none-match" in headers:
        raise InvalidRequest("If-Match and If-None-Match are not taken here", remedy=remedy)


class Preconditioned:
    """Turns a conflict into the refusal (412) of the precondition that led to it, if there was one.

    Not made of a generator: appends pass here.
    """

    __slots__ = ("_expected",)

    def __init__(self, expected: Expected | None) -> None:
        self._expected = expected

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._expected is not None and isinstance(error, VersionConflict):
            raise _failed(error) from error


def _failed(conflict: VersionConflict) -> HttpRefusal:
    problem = problem_of(conflict)
    failed = refusal(412, problem.type, problem.title, problem.detail, problem.remedy)
    failed.problem.fields.update(problem.fields)
    return failed
