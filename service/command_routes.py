"""Commands to entities, and the state of entities.

body -> CommandRequest -> CommandHandler.handle -> recorded events
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from eventstore.deciders.entities import Entities, Entity
from eventstore.deciders.explanation import MOST_EVENTS, FieldChange
from eventstore.deciders.handling import CommandRequest
from eventstore.deciders.live_deciders import Deciders
from eventstore.ids import new_id
from eventstore.names import CAUSATION_ID, CORRELATION_ID, category_of
from kernel.errors import InvalidRequest, NotFound
from schemas.json_values import shown
from schemas.records import RecordedEvent
from service.bodies import moment_of, parse_json
from service.http import read_body
from service.idempotency import idempotency_key
from service.models import json_body
from service.openapi_shapes import MAX_VERSION
from service.preconditions import Preconditioned, precondition_of
from service.render import answer, event_fragments
from service.requests import runtime_of
from service.tracing import tracing_of

router = APIRouter(prefix="/v1")
_EXPLAINED = 50
_CLOCKS = timedelta(minutes=1)
"""So far the clocks of a caller and of the service may be apart: who asks for now gets now."""
_Version = Annotated[int | None, Query(ge=0, le=MAX_VERSION, description="After this event")]
_At = Annotated[str | None, Query(description="As of this recorded time, ISO 8601 with an offset")]
_BODY = json_body({"type": "object"}, required=False)


@router.get("/deciders", summary="List the deciders of the workspace")
async def list_deciders(request: Request) -> Response:
    """Return each decider's category, version and commands."""
    deciders = _deciders(request).entities.deciders
    documents = [
        {
            "category": category,
            "version": found.version,
            "commands": found.commands,
            "snapshot_every": found.snapshot_every,
        }
        for category, found in sorted(deciders.items())
    ]
    return answer({"deciders": documents})


@router.post(
    "/commands/{category}/{id}/{command}",
    summary="Send a command to an entity",
    status_code=201,
    openapi_extra=_BODY,
)
async def send_command(request: Request, category: str, id: str, command: str) -> Response:
    """Decide a command on the entity's state and append the events that it leads to.

    201 with the events; 200 when it led to none, or when a command with this `Idempotency-Key`
    was handled before: then with what that one led to.
    """
    runtime = runtime_of(request)
    body = await read_body(request.scope, request.receive, runtime.config.max_body_bytes)
    opened = runtime.opened
    headers = dict(request.scope["headers"])
    key = idempotency_key(headers)
    expected = precondition_of(headers)
    opened.storage.check()
    # What one command did is found together, whoever else follows the ids.
    command_id = str(new_id())
    tracing = {CORRELATION_ID: command_id, CAUSATION_ID: command_id} | tracing_of(headers)
    with Preconditioned(expected):
        handled = await opened.deciders.current.handler.handle(
            CommandRequest(
                stream=_stream(category, id),
                name=command,
                data=_data(body, runtime.config.limits.json_depth),
                metadata=tracing,
                key=key,
                expected=expected,
            )
        )
    document = {
        "stream": handled.stream,
        "version": handled.version,
        "position": handled.position,
        "events": await event_fragments(handled.events, opened.intake),
    }
    created = handled.events and not handled.repeated
    return answer(document, status=201 if created else 200, headers=_etag(handled.version))


@router.get("/entities/{category}/{id}", summary="The state of an entity")
async def show_entity(
    request: Request, category: str, id: str, version: _Version = None, at: _At = None
) -> Response:
    """Return an entity's state, folded from its events: now, after a version, or at a time."""
    entities = _deciders(request).entities
    stream, moment = _stream(category, id), _moment(version, at)
    entity = await entities.load(category, stream, version=version, at=moment)
    if entity.version is None:
        raise _absent(category, id, at)
    document = _document(entities, category, id, entity, await entities.frozen(entity))
    return answer(document, headers=_etag(entity.version))


@router.get("/entities/{category}/{id}/explain", summary="How an entity came to its state")
async def explain_entity(
    request: Request,
    category: str,
    id: str,
    version: _Version = None,
    at: _At = None,
    limit: Annotated[
        int, Query(ge=1, le=MOST_EVENTS, description="At most so many events")
    ] = _EXPLAINED,
) -> Response:
    """Return the last events that led to a state, and which field each changed, from what to what.

    A page of large events ends sooner. `earlier` is the `version` to ask for those before.
    """
    entities = _deciders(request).entities
    stream, moment = _stream(category, id), _moment(version, at)
    found = await entities.explain(category, stream, version=version, at=moment, limit=limit)
    if found is None:
        raise _absent(category, id, at)
    intake = runtime_of(request).opened.intake
    shown = await event_fragments((step.event for step in found.events), intake)
    document = _document(entities, category, id, found.last, found.after) | {
        "before": found.before,
        "events": [
            {"event": event, "changes": [*map(_change, step.changes)]}
            for event, step in zip(shown, found.events, strict=True)
        ],
        "earlier": found.earlier,
    }
    return answer(document, headers=_etag(found.last.version))


def _document(
    entities: Entities, category: str, id_: str, last: Entity | RecordedEvent, state: object
) -> dict[str, object]:
    return {
        "stream": last.stream,
        "category": category,
        "id": id_,
        "version": last.version,
        "position": last.position,
        "recorded_at": last.recorded_at,
        "decider_version": entities.decider(category).version,
        "state": state,
    }


def _moment(version: int | None, at: str | None) -> datetime | None:
    """Return the time that was asked for.

    Raises `InvalidRequest` beside a version, and for a time to come: what is recorded by then may
    make another state of it.
    """
    if version is not None and at is not None:
        raise InvalidRequest("version and at were both given", remedy="Send one of them.")
    if at is None:
        return None
    moment, now = moment_of(at, "at"), datetime.now(UTC)
    if moment > now + _CLOCKS:
        raise InvalidRequest(
            f"at: {at} is to come: it is {now.isoformat(timespec='seconds')}",
            remedy="Send a time that has passed; for the state as it is now, none.",
        )
    return moment


def _absent(category: str, id_: str, at: str | None) -> NotFound:
    when = "" if at is None else f" at {at}"
    return NotFound(
        f"there is no {category} {id_}{when}",
        remedy=f"See which there are: penstock stream list --category {category}",
        stream=f"{category}-{id_}",
    )


def _change(change: FieldChange) -> dict[str, Any]:
    """Render a change; `from` or `to` is left out where the field was not there."""
    sides = {"from": change.before, "to": change.after}
    there = {side: values[0] for side, values in sides.items() if values}
    return {"field": change.field, **there}


def _deciders(request: Request) -> Deciders:
    """Return the deciders of this moment: a request uses one version of the code."""
    return runtime_of(request).opened.deciders.current


def _stream(category: str, id_: str) -> str:
    """Return the stream of an entity, whose category must be the one that was asked for."""
    stream = f"{category}-{id_}"
    if category_of(stream) != category:
        raise InvalidRequest(
            f"{shown(category)} is no category",
            remedy="A category has no '-'; the id may have some.",
        )
    return stream


def _data(body: bytes, json_depth: int) -> dict[str, Any]:
    if not body:
        return {}
    data = parse_json(body, json_depth)
    if not isinstance(data, dict):
        raise InvalidRequest("$: expected an object, the data of the command")
    return data


def _etag(version: int | None) -> dict[str, str]:
    return {} if version is None else {"etag": f'"{version}"'}
