"""The OpenAPI description of the appends, which are served in front of the framework."""

from __future__ import annotations

from typing import Any, Final

_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "data"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "format": "uuid", "description": "Makes a retry safe"},
        "type": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]{0,127}$"},
        "data": {"type": "object"},
        "metadata": {"type": "object"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "occurred_at": {"type": "string", "format": "date-time"},
    },
}
_EXPECTED: Final[dict[str, Any]] = {
    "default": "any",
    "oneOf": [
        {"type": "integer", "minimum": 0},
        {"type": "string", "enum": ["any", "no_stream", "stream_exists"]},
    ],
}
_EVENTS: Final[dict[str, Any]] = {"type": "array", "minItems": 1, "items": _EVENT}
_ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "stream": {"type": "string"},
        "first_version": {"type": "integer"},
        "last_version": {"type": "integer"},
        "first_position": {"type": "integer"},
        "last_position": {"type": "integer"},
    },
}
_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "remedy"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "remedy": {"type": "string"},
    },
}
_PROBLEMS: Final = {
    "400": "Broken JSON (malformed-body), or two expected versions (two-expectations)",
    "409": "version-conflict (expected, actual) or id-reused",
    "412": "If-Match or If-None-Match failed",
    "413": "body-too-large",
    "422": "invalid-request, unknown-type or schema-violation (path, complaint)",
    "429": "overloaded: see Retry-After",
    "503": "outcome-unknown: retry with the same ids; or unavailable",
    "507": "storage-full",
}


def _operation(summary: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    content = {"application/json": {"schema": answer}}
    problem = {"application/problem+json": {"schema": _PROBLEM}}
    return {
        "summary": summary,
        "tags": ["events"],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {
            "201": {"description": "Committed", "content": content},
            "200": {"description": "Committed before, the first answer again", "content": content},
        }
        | {status: {"description": text, "content": problem} for status, text in _PROBLEMS.items()},
    }


APPEND_PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/streams/{stream}": {
        "post": _operation(
            "Append events to one stream",
            {
                "type": "object",
                "required": ["events"],
                "properties": {"expected_version": _EXPECTED, "events": _EVENTS},
            },
            _ANSWER,
        )
        | {
            "parameters": [
                {
                    "name": "stream",
                    "in": "path",
                    "required": True,
                    "schema": {"type": "string"},
                    "description": "category-id",
                },
                {"name": "If-Match", "in": "header", "schema": {"type": "string"}},
                {"name": "If-None-Match", "in": "header", "schema": {"type": "string"}},
            ]
        }
    },
    "/v1/append": {
        "post": _operation(
            "Append events to several streams, all or nothing",
            {
                "type": "object",
                "required": ["appends"],
                "properties": {
                    "appends": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["stream", "events"],
                            "properties": {
                                "stream": {"type": "string"},
                                "expected_version": _EXPECTED,
                                "events": _EVENTS,
                            },
                        },
                    }
                },
            },
            {"type": "object", "properties": {"appends": {"type": "array", "items": _ANSWER}}},
        )
    },
}
