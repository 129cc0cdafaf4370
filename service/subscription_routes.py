"""Persistent subscriptions over HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated
from uuid import UUID

import orjson
from fastapi import APIRouter, Query, Request, Response

from eventstore.groups.model import MAX_IDS
from eventstore.groups.port import SubscriptionGroups
from schemas.records import RecordedEvent
from service.models import Model, body_of, described
from service.render import answer, event_json
from service.requests import runtime_of
from service.subscription_bodies import (
    AckBody,
    NackBody,
    ParkBody,
    ReplayBody,
    SubscriptionBody,
    parked_document,
    standing_document,
)

router = APIRouter(prefix="/v1/subscriptions")
MAX_WAIT_S = 60


@router.get("", summary="List the persistent subscriptions")
async def list_subscriptions(request: Request) -> Response:
    """Return every subscription and how it stands."""
    standings = await _groups(request).standings()
    return answer({"subscriptions": [standing_document(each) for each in standings]})


@router.put(
    "/{name}",
    summary="Make a persistent subscription",
    openapi_extra=described(SubscriptionBody, required=False),
)
async def put_subscription(request: Request, name: str) -> Response:
    """Make a subscription (201), or change how one hands out (200).

    A filter and a start stay as they were made: another one is refused with 409.
    """
    body = await _body(request, SubscriptionBody)
    groups = _groups(request)
    made = await groups.create(
        name, filter_=body.filter.filter(), start=body.position(), terms=body.terms()
    )
    return answer(standing_document(await groups.standing(name)), status=201 if made else 200)


@router.get("/{name}", summary="Show a persistent subscription")
async def show_subscription(request: Request, name: str) -> Response:
    """Return a subscription and how it stands."""
    return answer(standing_document(await _groups(request).standing(name)))


@router.delete("/{name}", summary="Delete a persistent subscription", status_code=204)
async def delete_subscription(request: Request, name: str) -> Response:
    """Forget a subscription, and what it has out and parked."""
    await _groups(request).delete(name)
    return Response(status_code=204)


@router.get("/{name}/next", summary="Take events to handle")
async def next_events(
    request: Request,
    name: str,
    consumer: Annotated[str, Query(description="Who takes them")] = "consumer",
    limit: Annotated[int, Query(ge=1, le=MAX_IDS, description="Events in one answer")] = 10,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="Seconds to wait for one")] = 0,
    per_stream: Annotated[
        int, Query(ge=1, le=MAX_IDS, description="Events of one stream in one answer")
    ] = 1,
) -> Response:
    """Return events in order of position, or wait for some.

    Of one stream there are up to `per_stream`, to be handled in order. Each must be acknowledged
    before its `ack_by`, or it is given again. `caught_up` says that the whole store was looked at.
    """
    opened = runtime_of(request).opened
    rendered: dict[UUID, orjson.Fragment] = {}

    async def render(event: RecordedEvent) -> None:
        rendered[event.id] = orjson.Fragment(await event_json(event, opened.intake))

    given = await opened.groups.next(
        name,
        consumer=consumer,
        limit=limit,
        per_stream=per_stream,
        wait_s=wait,
        gone=request.is_disconnected,
        ready=render,
    )
    document = {
        "events": [
            {
                "attempt": delivery.attempt,
                "ack_by": delivery.ack_by,
                "event": rendered[delivery.event.id],
            }
            for delivery in given.deliveries
        ],
        "caught_up": given.caught_up,
    }
    return answer(document, headers={"cache-control": "no-store"})


@router.post("/{name}/ack", summary="Acknowledge events", openapi_extra=described(AckBody))
async def ack(request: Request, name: str) -> Response:
    """Finish events for good, parked ones too; repeating it is harmless."""
    body = await _body(request, AckBody)
    return answer(await _groups(request).ack(name, body.ids))


@router.post("/{name}/nack", summary="Give events back", openapi_extra=described(NackBody))
async def nack(request: Request, name: str) -> Response:
    """Have events given again after a pause, or parked when that was their last time."""
    body = await _body(request, NackBody)
    settled = await _groups(request).nack(
        name,
        body.ids,
        reason=body.reason,
        consumer=body.consumer,
        delay=None if body.delay_s is None else timedelta(seconds=body.delay_s),
    )
    return answer(settled)


@router.post("/{name}/park", summary="Park events", openapi_extra=described(ParkBody))
async def park(request: Request, name: str) -> Response:
    """Put events aside at once, for a person to look at; their streams go on."""
    body = await _body(request, ParkBody)
    settled = await _groups(request).park(
        name, body.ids, reason=body.reason, consumer=body.consumer
    )
    return answer(settled)


@router.get("/{name}/parked", summary="Show parked events")
async def show_parked(
    request: Request,
    name: str,
    after: Annotated[int, Query(ge=0, le=2**62, description="Only greater positions")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_IDS, description="Events in one answer")] = 100,
) -> Response:
    """Return parked events by position, with why they were parked."""
    parked = await _groups(request).parked(name, after=after, limit=limit)
    return answer({"parked": [parked_document(each) for each in parked]})


@router.post(
    "/{name}/replay-parked",
    summary="Give parked events again",
    openapi_extra=described(ReplayBody, required=False),
)
async def replay_parked(request: Request, name: str) -> Response:
    """Have parked events given again, as if never given before; nothing else is."""
    body = await _body(request, ReplayBody)
    replayed, remaining = await _groups(request).replay_parked(name, body.ids)
    return answer({"replayed": replayed, "remaining": remaining})


def _groups(request: Request) -> SubscriptionGroups:
    return runtime_of(request).opened.groups


async def _body(request: Request, model: type[Model]) -> Model:
    return await body_of(request, model, instead=b"{}")
