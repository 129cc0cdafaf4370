"""Projections over HTTP: how they stand, their rows by key, and what changes in them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from eventstore.sizes import PAGE_BYTES
from kernel.errors import BeyondHead, InvalidRequest
from kernel.positions import DeltaVersion, Epoch
from service.feed_messages import SSE, Chunk
from service.feeds import FeedResponse
from service.lake_documents import projection_list, projection_status
from service.lake_reading import LakeReader
from service.openapi_shapes import MAX_VERSION
from service.preconditions import is_held
from service.projection_feed import ChangeFeed
from service.reads import page_size
from service.render import answer, dump
from service.requests import runtime_of
from service.runtime import Runtime
from service.subscription_routes import MAX_WAIT_S

if TYPE_CHECKING:
    import pyarrow as pa

    from projections.serve.keyed_rows import HeldRows, KeyedRows
    from projections.serve.newest_runs import ServedVersion
    from projections.serve.row_values import Key

router = APIRouter(prefix="/v1/projections")
_RENDERED_TOGETHER: Final = 50
_QUICK: Final = 50
"""So many searches of a key in a file are done at once: handing them to a thread takes as long."""
_SMALL_BYTES: Final = 64 * 1024
"""So many bytes of rows are rendered at once, for the same reason."""
_WAIT: Final = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})\"?(?=$|[,;\s])", re.I)

Prefer = Annotated[
    str | None, Header(description="`wait=2`: wait so many seconds for `after_position`")
]


@router.get("", summary="List the projections")
async def list_projections(request: Request) -> Response:
    """Return how each projection stands, as `penstock projection list --json` does.

    `stands_still` says why one does not move.
    """
    runtime = runtime_of(request)
    found = await runtime.lake.scan(
        lambda: projection_list(runtime.lake.lake, runtime.config.pipeline_account)
    )
    return answer({"projections": found})


@router.get("/{projection}", summary="Show a projection")
async def show_projection(request: Request, projection: str) -> Response:
    """Return how a projection stands, as `penstock projection status --json` does."""
    runtime = runtime_of(request)
    found = await runtime.lake.scan(
        lambda: projection_status(runtime.lake.lake, projection, runtime.config.pipeline_account)
    )
    return answer(found)


@router.get("/{projection}/rows", summary="Read a projection's rows")
async def read_rows(
    request: Request,
    projection: str,
    key: Annotated[
        list[str] | None, Query(description="A key: text, or a JSON object of its columns")
    ] = None,
    after: Annotated[str | None, Query(description="Only rows behind this key")] = None,
    limit: Annotated[int | None, Query(ge=1, description="Rows in one answer")] = None,
    epoch: Annotated[int | None, Query(ge=1, le=MAX_VERSION, description="As it was then")] = None,
    after_position: Annotated[
        int | None, Query(ge=0, le=MAX_VERSION, description="An event that the rows should have")
    ] = None,
    prefer: Prefer = None,
    cache_control: Annotated[str | None, Header(include_in_schema=False)] = None,
    if_none_match: Annotated[list[str] | None, Header(include_in_schema=False)] = None,
) -> Response:
    """Return rows by key, or all of them page by page in the order of keys, and their epoch.

    `key` may be given several times; a key without a row is left out. `next_after` is where the
    next page goes on, null at the end. With `after_position` the answer says whether the rows have
    that event (`applied`), and `Prefer: wait=N` waits up to N seconds until they do.
    """
    runtime = runtime_of(request)
    count = page_size(runtime, limit, whole=False)
    _check(key, after, count, epoch, after_position)
    reader = runtime.lake
    document: dict[str, object] = {}
    headers: dict[str, str] = {}
    if after_position is not None:
        store = await _store(runtime, after_position)
        wait_s = _wait_s(prefer)
        served, held, applied = await reader.awaited(projection, store, after_position, wait_s)
        document["applied"] = applied
        if applied and wait_s:
            headers["preference-applied"] = f"wait={wait_s}"
    else:
        newest = "no-cache" in (cache_control or "").lower()
        served, held = await (
            reader.served(projection, newest=True) if newest else reader.as_of(projection, epoch)
        )
    at, version, rows = await _rows_at(reader, served, held, epoch)
    state = f"{served.table_id}-{version}-{at}-{served.generation}-{served.status}"
    headers |= {"etag": f'"{state}"', "penstock-epoch": str(at)}
    if is_held(state, if_none_match or []):
        return Response(status_code=304, headers=headers)
    found = await _found(reader, rows, held, key, after, count)
    shown = {
        "projection": projection,
        "generation": served.generation,
        "status": served.status,
        "epoch": at,
        "version": version,
        "key": rows.key,
    }
    return answer(shown | document | found, headers=headers)


@router.get(
    "/{projection}/changes",
    summary="Follow a projection's changes (server-sent events)",
    response_class=StreamingResponse,
)
async def follow_changes(
    request: Request,
    projection: str,
    after: Annotated[str, Query(description="An `id`, or `end` for what changes now")] = "",
    last_event_id: Annotated[str | None, Header()] = None,
) -> FeedResponse:
    """Send all rows as they are, then what changes in them, as it does, without end.

    A change has `key`, `old`, `new`, `operation` and `epoch`. `event: reset` means: forget all
    rows; they follow anew. `event: caught-up` comes when all is told, `event: checkpoint` when an
    epoch changed nothing. `Last-Event-ID` beats `after`.
    """
    runtime = runtime_of(request)
    feed = ChangeFeed(runtime, projection, last_event_id or after)
    chunks = feed.chunks()
    first = await anext(chunks, Chunk(body=b""))  # Refusals must come before the answer begins.
    return FeedResponse(runtime, SSE, chunks, first, first.farewell)


async def _rows_at(
    reader: LakeReader, served: ServedVersion, held: HeldRows | None, epoch: int | None
) -> tuple[Epoch | None, DeltaVersion | None, KeyedRows]:
    """Return the rows to answer from, of the epoch that is asked for, or else as they are now."""
    lookups = await reader.lookups()
    lookups.asked_for(served.name)
    if epoch is not None and epoch != served.epoch:
        at = Epoch(epoch)
        version, rows = await reader.scan(lambda: lookups.rows_at(served, at))
        return at, version, rows
    if held is None:
        return served.epoch, served.version, await reader.scan(lambda: lookups.rows(served))
    return served.epoch, served.version, held


def _check(
    key: list[str] | None,
    after: str | None,
    count: int,
    epoch: int | None,
    after_position: int | None,
) -> None:
    """Refuse parameters that exclude each other, and more keys than an answer may have rows."""
    if key is not None and after is not None:
        raise InvalidRequest("key and after exclude each other", remedy="Give one of them.")
    if epoch is not None and after_position is not None:
        raise InvalidRequest(
            "epoch and after_position exclude each other",
            remedy="An epoch is what it is: leave after_position out.",
        )
    if key is not None and len(key) > count:
        raise InvalidRequest(
            f"key: {len(key)} keys, at most {count} rows are answered",
            remedy="Ask for fewer at a time, or give a greater limit.",
        )


async def _found(
    reader: LakeReader,
    rows: KeyedRows,
    held: HeldRows | None,
    key: list[str] | None,
    after: str | None,
    count: int,
) -> dict[str, object]:
    """Return the part of the answer that has the rows."""
    if key is None:
        return await reader.scan(lambda: _page(rows, after, count))
    if held is not rows:
        return await reader.scan(lambda: _whole(_by_key(rows, key)))
    if len(key) * len(held.parts) > _QUICK:
        return await reader.call(lambda: _whole(_by_key(rows, key)))
    found = _by_key(rows, key)
    if found.nbytes > _SMALL_BYTES:
        return await reader.call(lambda: _whole(found))
    return _whole(found)


def _by_key(rows: KeyedRows, key: list[str]) -> pa.Table:
    from projections.serve.row_values import key_of

    columns = [rows.schema.field(name) for name in rows.key]
    wanted = {each.places: each for each in (key_of(text, columns) for text in key)}
    return rows.find([*wanted.values()])


def _whole(found: pa.Table) -> dict[str, object]:
    """Return all rows that were found by key. Raises `InvalidRequest` where they are too large."""
    shown = _rendered(found)
    if len(shown) < found.num_rows:
        raise InvalidRequest(
            f"the rows of these {found.num_rows} keys take more than the {PAGE_BYTES} bytes that"
            " an answer may have",
            remedy="Ask for fewer keys at a time.",
        )
    return {"rows": shown, "next_after": None}


def _page(rows: KeyedRows, after: str | None, count: int) -> dict[str, object]:
    from projections.serve.row_values import key_of

    columns = [rows.schema.field(name) for name in rows.key]
    behind: Key | None = None if after is None else key_of(after, columns)
    page = rows.page(behind, count + 1)
    shown = _rendered(page.slice(0, count))
    more = len(shown) < page.num_rows
    return {"rows": shown, "next_after": _cursor(page, rows.key, len(shown)) if more else None}


def _rendered(rows: pa.Table) -> list[orjson.Fragment]:
    """Render rows, until they have as many bytes as an answer may have before its last one."""
    from projections.serve.row_values import documents

    shown: list[orjson.Fragment] = []
    size = 0
    for start in range(0, rows.num_rows, _RENDERED_TOGETHER):
        for row in documents(rows.slice(start, _RENDERED_TOGETHER)):
            if size >= PAGE_BYTES:
                return shown
            rendered = dump(row)
            size += len(rendered)
            shown.append(orjson.Fragment(rendered))
    return shown


def _cursor(page: pa.Table, key: tuple[str, ...], shown: int) -> str:
    """Return the last key that is shown, as `after` takes it."""
    from projections.serve.row_values import documents

    (last,) = documents(page.select(list(key)).slice(shown - 1, 1))
    return dump(last).decode()


async def _store(runtime: Runtime, position: int) -> str:
    """Return the id of the event store. Raises `BeyondHead` for a position that it has not."""
    store = runtime.opened.store
    head = await store.head()
    if position > head:
        raise BeyondHead(
            f"position {position} is beyond the head {head}", after=position, head=head
        )
    return await store.store_id()


def _wait_s(prefer: str | None) -> int:
    """Return how long to wait; what cannot be read of a preference is passed over (RFC 7240)."""
    asked = _WAIT.search(prefer or "")
    return min(int(asked[1]), MAX_WAIT_S) if asked else 0
