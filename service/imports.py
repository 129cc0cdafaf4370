"""Bulk import: `POST /v1/import`, one event a line, as many lines as there are.

    lines -> chunk of events -> Intake.encode -> one atomic append -> next chunk

One chunk is in memory at a time, and the next is read when it is on disk: memory stays constant
and a fast sender waits. Events go in as they come, so of each stream a prefix is there whenever an
import breaks; each event's id tells what is there already, so it can simply be sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Final
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response

from eventstore.store import AppendRequest, EncodedEvent, StreamAppend
from kernel.errors import IdReused, Overloaded, PenstockError
from schemas.records import NewEvent
from service.bodies import RequestContext, imported_event
from service.connections import connection_of, silent_body
from service.preconditions import refuse_preconditions
from service.problems import HttpRefusal, refusal
from service.render import answer
from service.requests import context_of, runtime_of
from service.runtime import Opened, Runtime

router = APIRouter(prefix="/v1")
_CHUNK_BYTES: Final = 1024 * 1024
_ENVELOPE_BYTES: Final = 8 * 1024
_TRIES: Final = 30
_PAUSE_S: Final = 0.5
_MOST: Final = 2**53
"""More lines than anybody has, and a number that every JSON parser reads as it is."""
_BODY: Final = {
    "requestBody": {
        "required": True,
        "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One event of an import and where it goes."""

    number: int
    stream: str
    category: str
    event: NewEvent


@dataclass(slots=True, kw_only=True)
class ImportProgress:
    """What an import has done: all lines up to `lines` are on disk. `at`: the one it works on."""

    lines: int = 0
    appended: int = 0
    repeated: int = 0
    last_position: int = 0
    at: int = 0

    def document(self) -> dict[str, int]:
        """Return what the caller is told."""
        return {
            "lines": self.lines,
            "appended": self.appended,
            "repeated": self.repeated,
            "last_position": self.last_position,
        }


@router.post("/import", summary="Append any number of events, one a line", openapi_extra=_BODY)
async def import_events(
    request: Request,
    first_line: Annotated[
        int, Query(ge=1, le=_MOST, description="The number of the first line that is sent")
    ] = 1,
) -> Response:
    """Append each line's event to its stream, in the order of lines.

    A line is `{"stream", "id", "type", "data", …}`. A problem tells in `lines` how many lines are
    done, and in `line` which one it is about.
    """
    runtime = runtime_of(request)
    headers = dict(request.headers.raw)
    refuse_preconditions(headers, "An import expects no version: append with expected_version.")
    context = context_of(runtime.config, headers)
    progress = ImportProgress(lines=first_line - 1)
    try:
        if (connection := connection_of(request.scope)) is not None:
            connection.patient = True  # The answer shall say how far the import came.
        lines = _lines(request, context, runtime.config.import_silence_s, first_line)
        await _import(runtime, context, lines, progress)
    except PenstockError as error:
        error.fields.update(line=progress.at, **progress.document())
        raise
    except HttpRefusal as refused:
        refused.problem.fields.update({"line": progress.at} | refused.problem.fields)
        refused.problem.fields.update(progress.document())
        raise
    return answer(progress.document())


async def _import(
    runtime: Runtime,
    context: RequestContext,
    lines: AsyncIterator[tuple[int, bytes]],
    progress: ImportProgress,
) -> None:
    opened, at_once = runtime.opened, runtime.config.import_chunk_events
    chunk: list[Line] = []
    ids: set[UUID] = set()
    size = 0
    async for number, text in lines:
        progress.at = number
        stream, category, event = imported_event(text, number, context)
        if event.id in ids:
            # An event that a file has twice is found by the store, once the first one is there.
            await _commit(opened, chunk, progress)
            chunk, ids, size = [], set(), 0
            progress.at = number
        chunk.append(Line(number=number, stream=stream, category=category, event=event))
        ids.add(event.id)
        size += len(text)
        if len(chunk) >= at_once or size >= _CHUNK_BYTES:
            await _commit(opened, chunk, progress)
            chunk, ids, size = [], set(), 0
    if chunk:
        await _commit(opened, chunk, progress)


async def _commit(opened: Opened, chunk: list[Line], progress: ImportProgress) -> None:
    opened.storage.check()
    encoded: list[EncodedEvent] = []
    for line in chunk:
        progress.at = line.number
        encoded += await opened.intake.encode(line.category, (line.event,))
    try:
        await _append(opened, list(zip(chunk, encoded, strict=True)), progress)
    except IdReused:
        # A part may be there already, from an import whose chunks began elsewhere.
        for line, event in zip(chunk, encoded, strict=True):
            progress.at = line.number
            await _append(opened, [(line, event)], progress)


async def _append(
    opened: Opened, chunk: list[tuple[Line, EncodedEvent]], progress: ImportProgress
) -> None:
    """Append lines together; those that follow each other in one stream go as one."""
    appends = []
    for (stream, category), found in groupby(chunk, _destination):
        events = tuple(event for _, event in found)
        appends.append(
            StreamAppend(stream=stream, category=category, expected="any", events=events)
        )
    request = AppendRequest(appends=tuple(appends))
    for attempt in range(1, _TRIES + 1):
        try:
            appended = await opened.store.append(request)
            break
        except Overloaded:
            if attempt == _TRIES:
                raise
            await asyncio.sleep(_PAUSE_S)
    progress.lines = chunk[-1][0].number
    if appended.repeated:
        progress.repeated += len(chunk)
    else:
        progress.appended += len(chunk)
    last = max(answer.last_position for answer in appended.appends)
    progress.last_position = max(progress.last_position, last)


def _destination(pair: tuple[Line, EncodedEvent]) -> tuple[str, str]:
    return pair[0].stream, pair[0].category


async def _lines(
    request: Request, context: RequestContext, silence_s: float, first: int
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield the body's lines, numbered from `first`; blank ones count and are left out."""
    at_most = context.limits.event_bytes + _ENVELOPE_BYTES
    rest = b""
    number = first - 1
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(silence_s):
                part = await anext(stream, None)
        except TimeoutError:
            raise silent_body(silence_s) from None
        *lines, rest = (rest + (b"\n" if part is None else part)).split(b"\n")
        for line in lines:
            number += 1
            if len(line) > at_most:
                raise _too_long(number, at_most)
            if line.strip():
                yield number, line
        if part is None:
            return
        if len(rest) > at_most:
            raise _too_long(number + 1, at_most)


def _too_long(number: int, at_most: int) -> HttpRefusal:
    refused = refusal(
        413,
        "event-too-large",
        "An event is too large",
        f"line {number} has more than {at_most} bytes",
        "Keep large content elsewhere and name it in the event, or raise service.max_event_bytes.",
    )
    refused.problem.fields["line"] = number
    return refused
