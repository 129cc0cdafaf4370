"""Schemas of event types over HTTP."""

from __future__ import annotations

import contextlib
import re
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from eventstore.lifecycle import CHANGE_TYPES
from eventstore.names import CATEGORY, reserved_type
from kernel.errors import InvalidRequest
from schemas import json_text
from schemas.compatibility import Level
from schemas.json_values import shown
from schemas.registry import RegisteredSchema
from service.limits import check_depth
from service.models import body_of, described
from service.render import answer
from service.requests import runtime_of

router = APIRouter(prefix="/v1/schemas")
_SUBJECT = re.compile(rf"{CATEGORY}\.[A-Za-z][A-Za-z0-9_]{{0,127}}")
_EXAMPLE = 'Send {"subject": "order.placed", "schema": {"type": "record", …}}'


class SchemaBody(BaseModel):
    """A schema to add: Avro as JSON, or as text."""

    model_config = ConfigDict(extra="forbid")

    subject: str
    schema_: dict[str, object] | str = Field(alias="schema")
    compatibility: Level | None = None


class CompatibilityBody(BaseModel):
    """What new versions of an event type must get on with."""

    model_config = ConfigDict(extra="forbid")

    level: Level


@router.get("", summary="List the schemas of event types")
async def list_schemas(request: Request) -> Response:
    """Return the newest version of each event type's schema."""
    intake = runtime_of(request).opened.intake
    found = await intake.all_latest(lambda subject: _SUBJECT.fullmatch(subject) is not None)
    return answer({"schemas": [_document(schema) for schema in found if _is_of_events(schema)]})


@router.get("/{subject}", summary="All versions of one schema")
async def show_schema(request: Request, subject: str) -> Response:
    """Return every version of an event type's schema, oldest first, and its compatibility."""
    opened = runtime_of(request).opened
    versions = await opened.intake.versions(_checked(subject))
    return answer(
        {
            "subject": subject,
            "compatibility": await opened.levels.level(subject),
            "versions": [_document(schema) for schema in versions if _is_of_events(schema)],
        }
    )


@router.put(
    "/{subject}/compatibility",
    summary="Set what new versions must get on with",
    openapi_extra=described(CompatibilityBody),
)
async def set_compatibility(request: Request, subject: str) -> Response:
    """Set an event type's level. It counts for versions to come; those that are there stay."""
    body = await body_of(request, CompatibilityBody)
    await runtime_of(request).opened.levels.set_level(_checked(subject), body.level)
    return answer({"subject": subject, "compatibility": body.level})


@router.post("", summary="Add a schema", status_code=201, openapi_extra=described(SchemaBody))
async def add_schema(
    request: Request,
    check: Annotated[bool, Query(description="Only say what would stop it")] = False,
) -> Response:
    """Register a schema that can read everything stored with earlier versions, or whatever the
    type's compatibility says; `compatibility` in the body sets it, from this version on.

    201 when it is new, 200 when it was there; with `check` nothing is registered.
    """
    runtime = runtime_of(request)
    body = await body_of(request, SchemaBody, remedy=_EXAMPLE)
    intake, levels = runtime.opened.intake, runtime.opened.levels
    if body.subject.rpartition(".")[2] in CHANGE_TYPES:
        raise reserved_type(body.subject)
    subject, text = _checked(body.subject), _text(body.schema_, runtime.config.limits.json_depth)
    level = body.compatibility or await levels.level(subject)
    if check:
        complaints = await intake.complaints(subject, text, level)
        return answer({"subject": subject, "compatible": not complaints, "complaints": complaints})
    registered, new = await intake.add(subject, text, level)
    if body.compatibility is not None:
        await levels.set_level(subject, level)
    return answer(_document(registered), status=201 if new else 200)


def _checked(subject: str) -> str:
    if _SUBJECT.fullmatch(subject):
        return subject
    raise InvalidRequest(
        f"{shown(subject)} is no subject", remedy="Name it CATEGORY.TYPE, as order.placed"
    )


def _text(schema: dict[str, object] | str, depth: int) -> str:
    if isinstance(schema, dict):
        return json_text.dump(schema).decode()
    with contextlib.suppress(orjson.JSONDecodeError):  # What is no JSON is refused as no schema.
        check_depth(orjson.loads(schema), schema.encode(), depth)
    return schema


def _is_of_events(schema: RegisteredSchema) -> bool:
    """Say whether a schema can be that of events: a shared registry has others, in any language."""
    with contextlib.suppress(orjson.JSONDecodeError):
        shape = orjson.loads(schema.schema)
        return isinstance(shape, dict) and shape.get("type") == "record"
    return False


def _document(schema: RegisteredSchema) -> dict[str, object]:
    return {
        "subject": schema.subject,
        "id": schema.id,
        "version": schema.version,
        "schema": orjson.loads(schema.schema),
    }
