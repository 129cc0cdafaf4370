"""The lake's tables and epochs over HTTP, as `penstock table` and `penstock epoch` show them."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request, Response

from service.lake_documents import epoch_document, table_list, table_shown
from service.openapi_shapes import MAX_VERSION
from service.render import answer
from service.requests import runtime_of

router = APIRouter(prefix="/v1")
_MOST_COMMITS: Final = 1_000

Limit = Annotated[int, Query(ge=1, le=_MOST_COMMITS, description="At most so many, newest first")]


@router.get("/tables", summary="List the lake's tables")
async def list_tables(request: Request) -> Response:
    """Return every table with version, rows and size, and why one is held."""
    reader = runtime_of(request).lake
    found = await reader.scan(lambda: table_list(reader.lake))
    return answer({"tables": found})


@router.get("/tables/{table:path}", summary="Show a table and its commits")
async def show_table(request: Request, table: str, limit: Limit = 20) -> Response:
    """Return one table and its newest commits: `current/shop.public.orders`, or a projection by its
    bare name.
    """
    reader = runtime_of(request).lake
    found = await reader.scan(lambda: table_shown(reader.lake, table, commits=limit))
    return answer(found)


@router.get("/epochs", summary="List committed epochs")
async def list_epochs(
    request: Request,
    limit: Limit = 20,
    before: Annotated[
        int | None, Query(ge=1, le=MAX_VERSION, description="Only epochs before this one")
    ] = None,
) -> Response:
    """Return epochs, newest first: offsets in, table versions out.

    `next_before` is where the next call goes on, null at the first epoch.
    """
    from projections.serve.epochs import newest_epochs

    reader = runtime_of(request).lake
    found = await reader.scan(lambda: newest_epochs(reader.lake, limit=limit, before=before))
    last = found[-1].epoch if found else 1
    document = {
        "epochs": [epoch_document(each) for each in found],
        "next_before": last if last > 1 else None,
    }
    return answer(document)


@router.get("/epochs/{epoch}", summary="Show an epoch")
async def show_epoch(
    request: Request, epoch: Annotated[int, Path(ge=1, le=MAX_VERSION)]
) -> Response:
    """Return one epoch: offsets, heads, cuts, and the version of every table that belongs to it."""
    from projections.serve.epochs import epoch_at

    reader = runtime_of(request).lake
    found = await reader.scan(lambda: epoch_at(reader.lake, epoch))
    return answer(epoch_document(found), headers={"penstock-epoch": str(epoch)})
