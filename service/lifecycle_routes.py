"""The life of a stream over HTTP: what it shows, and its end."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from eventstore.lifecycle import StreamStanding
from eventstore.policies import PolicyChanged, StreamPolicies
from service.models import body_of, described
from service.preconditions import Preconditioned, precondition_of
from service.render import answer
from service.requests import runtime_of

router = APIRouter(prefix="/v1/streams/{stream}")
_MOST = 2**31


class PolicyBody(BaseModel):
    """What a stream shows. What is left out is not bounded; `truncate_before` stays as it was."""

    model_config = ConfigDict(extra="forbid", strict=True)

    truncate_before: int | None = Field(default=None, ge=0, lt=2**62)
    max_age_s: int | None = Field(default=None, gt=0, le=_MOST)
    max_count: int | None = Field(default=None, gt=0, le=_MOST)


class ArchivedBody(BaseModel):
    """How far a stream is in the archive."""

    model_config = ConfigDict(extra="forbid", strict=True)

    up_to: int = Field(ge=0, lt=2**62)


@router.get("/metadata", summary="What a stream shows of its events")
async def show_metadata(request: Request, stream: str) -> Response:
    """Return a stream's version and policy. ETag: the version of its metadata stream."""
    standing = await runtime_of(request).opened.store.standing(stream)
    return _answer(standing, _document(standing))


@router.put(
    "/metadata",
    summary="Say what a stream shows of its events",
    openapi_extra=described(PolicyBody),
)
async def set_metadata(request: Request, stream: str) -> Response:
    """Hide events by age, number or version. The change is recorded; the log keeps all events."""
    body = await body_of(
        request, PolicyBody, remedy='Example: {"max_count": 1000, "max_age_s": 86400}'
    )
    expected = precondition_of(dict(request.scope["headers"]))
    with Preconditioned(expected):
        changed = await _policies(request).set(
            stream,
            truncate_before=body.truncate_before,
            max_age_s=body.max_age_s,
            max_count=body.max_count,
            expected="any" if expected is None else expected,
        )
    return _changed(changed)


@router.put(
    "/archived",
    summary="Record how much of a stream is in the archive",
    openapi_extra=described(ArchivedBody),
)
async def set_archived(request: Request, stream: str) -> Response:
    """Record that events below a version are in the log, and may leave the database.

    `penstock stream archive` calls it, having compared them. It hides nothing.
    """
    body = await body_of(request, ArchivedBody, remedy='Example: {"up_to": 100}')
    return _changed(await _policies(request).archived(stream, up_to=body.up_to))


@router.delete("", summary="Delete a stream")
async def delete_stream(
    request: Request,
    stream: str,
    tombstone: Annotated[bool, Query(description="For good: nobody may append again")] = False,
) -> Response:
    """Hide all events of a stream. The change is recorded; the log keeps all events."""
    expected = precondition_of(dict(request.scope["headers"]))
    with Preconditioned(expected):
        changed = await _policies(request).delete(
            stream, for_good=tombstone, expected="any" if expected is None else expected
        )
    return _changed(changed)


def _policies(request: Request) -> StreamPolicies:
    opened = runtime_of(request).opened
    opened.storage.check()
    return StreamPolicies(opened.store, opened.intake)


def _document(standing: StreamStanding) -> dict[str, object]:
    return {"stream": standing.stream, "version": standing.version, **asdict(standing.policy)}


def _changed(changed: PolicyChanged) -> Response:
    document = _document(changed.standing) | {"position": changed.position}
    return _answer(changed.standing, document)


def _answer(standing: StreamStanding, document: dict[str, object]) -> Response:
    version = standing.metadata_version
    headers = {} if version is None else {"etag": f'"{version}"'}
    return answer(document, headers=headers)
