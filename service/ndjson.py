"""Many events as lines of JSON (NDJSON), in constant memory and at the speed of the codecs.

    page of rows -> data decoded by schema -> one dump of the page -> lines -> socket

A page is asked of PostgreSQL while the one before it is rendered and sent; a client that reads
slowly is waited for, so at most two pages are held. What is gained over rendering each event by
itself is one call for a page instead of three for an event.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import orjson

from eventstore.intake import Intake
from eventstore.postgres.reading import PlainRow
from kernel.errors import ContractViolation, Incompatible, NotFound
from schemas.json_codec import JsonCodec, json_default
from schemas.records import FORMAT_AVRO, RecordedEvent
from service.render import EventData, event_json

NDJSON = "application/x-ndjson"
PAGE = 1_000
"""Events in one page: some milliseconds of rendering, during which appends wait."""

_SCHEMA: Final = 6
_FORMAT: Final = 7
_DATA: Final = 8
# The first key of each document while a page is one JSON list: nobody's data can hold it.
_MARK = f"penstock:{secrets.token_hex(16)}"
_BETWEEN = b',{"%b":0,' % _MARK.encode()
_OPTIONS = orjson.OPT_UTC_Z
_EMPTY_OBJECT, _EMPTY_LIST = orjson.Fragment(b"{}"), orjson.Fragment(b"[]")

Row = TypeVar("Row", PlainRow, RecordedEvent)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[Row]):
    """Rows to render, and the place where the next page begins."""

    rows: Sequence[Row]
    scanned_to: int


NextPage = Callable[[int], Coroutine[Any, Any, Page[Row]]]
"""Reads the page behind (or, backwards, before) a place that the last page gave."""
Lines = Callable[[Sequence[Row]], Awaitable[bytes]]
"""Renders the rows of a page, one a line."""


async def lines_of(rows: Sequence[PlainRow], intake: Intake) -> bytes:
    """Render rows as lines, the documents being those of `render.event_json`.

    Raises `Unavailable` like `Intake.codec`.
    """
    if not rows:
        return b""
    data = await _decoded(rows, intake)
    documents = [_document(row, decoded) for row, decoded in zip(rows, data, strict=True)]
    try:
        dumped = orjson.dumps(documents, json_default, _OPTIONS)
    except orjson.JSONEncodeError:
        alone = map(_dumped_alone, rows, documents)
        dumped = b"[" + b",".join(alone) + b"]"
    return b"{" + dumped[len(_BETWEEN) : -1].replace(_BETWEEN, b"\n{") + b"\n"


def _document(row: PlainRow, decoded: dict[str, Any] | _Unreadable) -> dict[str, Any]:
    document = {
        _MARK: 0,
        "id": row[0],
        "stream": row[1],
        "category": row[2],
        "version": row[3],
        "position": row[4],
        "type": row[5],
        "schema_id": row[6],
        "data": decoded,
        "metadata": _EMPTY_OBJECT if row[9] is None else orjson.Fragment(row[9]),
        "tags": _EMPTY_LIST if row[10] is None else orjson.Fragment(row[10]),
        "occurred_at": row[11],
        "recorded_at": row[12],
    }
    if isinstance(decoded, _Unreadable):
        document |= {"data": None, "metadata": _EMPTY_OBJECT, "unreadable": decoded.why}
    return document


def _dumped_alone(row: PlainRow, document: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(document, json_default, _OPTIONS)
    except orjson.JSONEncodeError as error:
        return orjson.dumps(_document(row, _Unreadable(str(error))), json_default, _OPTIONS)


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Takes the place of data that cannot be shown, and says why."""

    why: str


async def _decoded(rows: Sequence[PlainRow], intake: Intake) -> list[dict[str, Any] | _Unreadable]:
    places: dict[int, list[int]] = defaultdict(list)
    data: list[dict[str, Any] | _Unreadable] = [{}] * len(rows)
    for index, row in enumerate(rows):
        if row[_FORMAT] == FORMAT_AVRO:
            places[row[_SCHEMA]].append(index)
        else:
            data[index] = _Unreadable(f"event {row[0]} has the unknown data format {row[_FORMAT]}")
    for schema_id, indexes in places.items():
        bodies = [rows[index][_DATA] for index in indexes]
        for index, value in zip(indexes, await _values(schema_id, bodies, intake), strict=True):
            data[index] = value
    return data


async def _values(
    schema_id: int, bodies: Sequence[bytes], intake: Intake
) -> Sequence[dict[str, Any] | _Unreadable]:
    try:
        codec = await intake.codec(schema_id)
    except (ContractViolation, NotFound) as error:
        return [_Unreadable(error.message)] * len(bodies)
    try:
        return codec.decode_many(bodies)
    except Incompatible:
        return [_value(codec, body) for body in bodies]


def _value(codec: JsonCodec, body: bytes) -> dict[str, Any] | _Unreadable:
    try:
        return codec.decode(body)
    except Incompatible as error:
        return _Unreadable(error.message)


async def upcast_lines(events: Sequence[RecordedEvent], data: EventData) -> bytes:
    """Render events one by one, as `data` gives them: what upcasters take time for."""
    return b"".join([await event_json(event, data) + b"\n" for event in events])


async def stream_lines(
    first: Page[Row], next_page: NextPage[Row], lines: Lines[Row], *, end: int
) -> AsyncIterator[bytes]:
    """Yield the lines of page after page until one says that it looked at all up to `end`."""
    page = first
    ahead: asyncio.Task[Page[Row]] | None = None
    try:
        while True:
            if page.scanned_to != end:
                ahead = asyncio.create_task(next_page(page.scanned_to))
                await asyncio.sleep(0)  # Its question is on the way before this page is rendered.
            if page.rows:
                yield await lines(page.rows)
            if ahead is None:
                return
            page, ahead = await ahead, None
    finally:
        if ahead is not None:
            # A question that is under way is let come to its end: stopping it costs a connection.
            _finishing.add(ahead)
            ahead.add_done_callback(_finished)


_finishing: set[asyncio.Task[Any]] = set()


def _finished(task: asyncio.Task[Any]) -> None:
    _finishing.discard(task)
    if not task.cancelled():
        task.exception()  # Nobody is left to be told.
