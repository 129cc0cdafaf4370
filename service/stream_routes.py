"""Which streams and categories there are, and which store has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from eventstore.listing import range_of
from service.reads import Category, Limit, StreamPrefix, page_size
from service.render import dump
from service.requests import runtime_of

router = APIRouter(prefix="/v1")
_JSON = "application/json"


@router.get("/streams", summary="List streams")
async def list_streams(
    request: Request,
    category: Category = None,
    prefix: StreamPrefix = None,
    after: Annotated[str | None, Query(description="Only streams behind this name")] = None,
    limit: Limit = None,
) -> Response:
    """Return streams by name, in the order of code points, each with its last event.

    `next_after` is where the next call goes on, null at the end.
    """
    runtime = runtime_of(request)
    count = page_size(runtime, limit, whole=False)
    range_ = range_of(category, prefix, after)
    found = () if range_ is None else await runtime.opened.store.streams(range_, limit=count + 1)
    shown = found[:count]
    document = {
        "streams": [
            {
                "stream": each.stream,
                "category": each.category,
                "version": each.version,
                "position": each.position,
                "recorded_at": each.recorded_at,
                "deleted": each.deleted,
                "tombstoned": each.tombstoned,
            }
            for each in shown
        ],
        "next_after": shown[-1].stream if len(found) > count else None,
    }
    return Response(dump(document), media_type=_JSON)


@router.get("/store", summary="Which store this is")
async def which_store(request: Request) -> Response:
    """Return the id of the store and its last position; `store renew-id` gives it another id."""
    store = runtime_of(request).opened.store
    document = {"store": await store.store_id(), "head": await store.head()}
    return Response(dump(document), media_type=_JSON)


@router.get("/categories", summary="List categories")
async def list_categories(request: Request) -> Response:
    """Return all categories by name, each with its number of streams and its last event.

    More than 1,000 streams are not counted: then `more` is true.
    """
    found = await runtime_of(request).opened.store.categories()
    document = {
        "categories": [
            {
                "category": each.category,
                "streams": each.streams,
                "more": each.more,
                "position": each.position,
                "recorded_at": each.recorded_at,
            }
            for each in found
        ]
    }
    return Response(dump(document), media_type=_JSON)
