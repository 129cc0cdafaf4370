"""Which streams and categories there are, and which store has them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from eventstore.listing import range_of
from service.reads import Category, Limit, StreamPrefix, page_size
from service.render import answer
from service.requests import runtime_of

router = APIRouter(prefix="/v1")


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
    next_after = found[count - 1].stream if len(found) > count else None
    return answer({"streams": found[:count], "next_after": next_after})


@router.get("/store", summary="Which store this is")
async def which_store(request: Request) -> Response:
    """Return the id of the store and its last position; `store renew-id` gives it another id."""
    store = runtime_of(request).opened.store
    return answer({"store": await store.store_id(), "head": await store.head()})


@router.get("/categories", summary="List categories")
async def list_categories(request: Request) -> Response:
    """Return all categories by name, each with its number of streams and its last event.

    More than 1,000 streams are not counted: then `more` is true.
    """
    return answer({"categories": await runtime_of(request).opened.store.categories()})
