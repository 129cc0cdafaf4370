"""Bodies that are pydantic models or plain JSON: how they are parsed and described."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from apps.service.bodies import parse_json
from kernel.errors import InvalidRequest

Model = TypeVar("Model", bound=BaseModel)


def parsed(model: type[Model], raw: bytes, *, remedy: str | None = None) -> Model:
    """Parse a body, or refuse it with the place of the first complaint."""
    try:
        return model.model_validate(parse_json(raw))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("$", *first["loc"])))
        raise InvalidRequest(f"{place}: {first['msg']}", remedy=remedy) from None


def json_body(schema: Mapping[str, Any], *, required: bool = True) -> dict[str, Any]:
    """Return the part of an OpenAPI operation that says what its body looks like."""
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": required, "content": content}}


def described(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """Return what `json_body` does, of a model; models within it are written out."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs", {})
    for name, definition in definitions.items():
        for key, value in schema.get("properties", {}).items():
            if value.get("$ref", "").endswith(f"/{name}"):
                schema["properties"][key] = definition
    return json_body(schema, required=required)
