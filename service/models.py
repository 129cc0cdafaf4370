"""Bodies that are pydantic models or plain JSON: how they are parsed and described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError

from kernel.errors import InvalidRequest
from schemas.complaints import complaint_of
from service.bodies import parse_json
from service.http import read_body
from service.requests import runtime_of

Model = TypeVar("Model", bound=BaseModel)


async def body_of(
    request: Request, model: type[Model], *, remedy: str | None = None, instead: bytes = b""
) -> Model:
    """Read and parse a request's body, or refuse it with the place of the first complaint.

    `instead`: what stands for no body.
    """
    config = runtime_of(request).config
    raw = await read_body(request.scope, request.receive, config.max_body_bytes)
    try:
        return model.model_validate(parse_json(raw or instead, config.limits.json_depth))
    except ValidationError as error:
        raise InvalidRequest(complaint_of(error.errors(), "$"), remedy=remedy) from None


def json_body(schema: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """Return the part of an OpenAPI operation that says what its body looks like."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}


def described(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return what `json_body` does, of a model; `completed` finds models within it in `$defs`."""
    return json_body(model.model_json_schema(), required=required)
