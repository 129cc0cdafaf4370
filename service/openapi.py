"""The OpenAPI document: what the framework knows of the routes, and everything that it does not.

The framework describes paths and parameters. Answers, problems and the appends at the edge are
added here; a test holds that no operation is left out, another one that the service keeps to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from service.cloudevents import BATCH, EVENT
from service.openapi_shapes import (
    COMPONENTS,
    EXPECTED,
    MAX_VERSION,
    PATH_PARTS,
    STREAM_NAME,
    TEXT,
    WHOLE,
    Shape,
    listed,
    record,
    ref,
)
from service.problems import CONTENT_TYPE

JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"

_PROBLEMS: Final[dict[str, str]] = {
    "400": "malformed-body: no JSON; malformed-address, unknown-parameter, repeated-parameter, "
    "two-expectations",
    "401": "unauthorized",
    "403": "foreign-origin: a web page sent it",
    "404": "not-found",
    "405": "method-not-allowed",
    "408": "slow-body, slow-request",
    "409": "version-conflict, condition-failed, id-reused, beyond-head, store-diverged, "
    "incompatible, "
    "subscription-differs: something else is the case",
    "410": "stream-gone",
    "412": "If-Match or If-None-Match failed",
    "413": "body-too-large, event-too-large",
    "415": "unsupported-media-type",
    "421": "foreign-host",
    "422": "invalid-request, unknown-type, schema-violation, command-refused",
    "429": "overloaded, too-many-subscriptions: see Retry-After",
    "431": "head-too-large",
    "500": "internal, misconfigured, decider-failed",
    "503": "unavailable, too-many-connections; outcome-unknown: repeat with the same ids",
    "507": "storage-full",
}
_ALWAYS: Final = ("400", "401", "403", "408", "415", "421", "422", "431", "500", "503")
_WRITES: Final = ("400", "409", "410", "412", "413", "415", "429", "507")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What an operation answers: media type -> shape by status, and the statuses of problems."""

    good: dict[str, dict[str, Shape]]
    problems: tuple[str, ...] = ()
    headers: tuple[str, ...] = field(default=())


def _json(shape: str, *statuses: str) -> dict[str, dict[str, Shape]]:
    return {status: {JSON: ref(shape)} for status in statuses or ("200",)}


_EVENT_LIST: Final = {BATCH: listed(ref("CloudEvent"))}
_CHANGED: Final = Answers(
    good=_json("StreamChanged"),
    problems=("400", "404", "409", "410", "412", "413", "429", "507"),
    headers=("etag",),
)
_SETTLED: Final = Answers(good=_json("Settled"), problems=("400", "404", "413"))

ANSWERS: Final[dict[str, Answers]] = {
    "get /v1/streams/{stream}": Answers(
        good={"200": {JSON: ref("StreamPage"), NDJSON: ref("Event"), **_EVENT_LIST}},
        problems=("404", "410", "429"),
        headers=("etag", "penstock-category"),
    ),
    "get /v1/streams": Answers(good=_json("StreamList")),
    "get /v1/store": Answers(good=_json("StoreId"), problems=("409",)),
    "get /v1/categories": Answers(good=_json("CategoryList")),
    "get /v1/events": Answers(
        good={"200": {JSON: ref("EventPage"), NDJSON: ref("Event"), **_EVENT_LIST}},
        problems=("409", "429"),
    ),
    "post /v1/events/query": Answers(
        good={"200": {JSON: ref("EventPage"), **_EVENT_LIST}}, problems=("400", "409", "413")
    ),
    "get /v1/events/subscribe": Answers(
        good={"200": {SSE: TEXT, NDJSON: {"anyOf": [ref("Event"), ref("FeedMark")]}}},
        problems=("409", "429"),
    ),
    "get /v1/events/{event_id}": Answers(
        good={"200": {JSON: ref("Event"), EVENT: ref("CloudEvent"), **_EVENT_LIST}},
        problems=("404",),
    ),
    "delete /v1/streams/{stream}": _CHANGED,
    "get /v1/streams/{stream}/metadata": Answers(
        good=_json("StreamMetadata"), problems=("404", "410"), headers=("etag",)
    ),
    "put /v1/streams/{stream}/metadata": _CHANGED,
    "put /v1/streams/{stream}/archived": _CHANGED,
    "post /v1/import": Answers(
        good=_json("Imported"), problems=("400", "408", "409", "410", "413", "429", "507")
    ),
    "post /v1/encode": Answers(good=_json("Encoded"), problems=("400", "413")),
    "get /v1/schemas": Answers(good=_json("SchemaList")),
    "post /v1/schemas": Answers(
        good={
            "200": {JSON: {"anyOf": [ref("Schema"), ref("SchemaCheck")]}},
            "201": {JSON: ref("Schema")},
        },
        problems=("400", "409", "413"),
    ),
    "get /v1/schemas/{subject}": Answers(good=_json("SchemaVersions"), problems=("404",)),
    "put /v1/schemas/{subject}/compatibility": Answers(
        good=_json("Compatibility"), problems=("400", "404", "409", "413")
    ),
    "get /v1/deciders": Answers(good=_json("Deciders")),
    "post /v1/commands/{category}/{id}/{command}": Answers(
        good=_json("CommandAnswer", "200", "201"), problems=("404", *_WRITES), headers=("etag",)
    ),
    "get /v1/entities/{category}/{id}": Answers(
        good=_json("Entity"), problems=("404", "410"), headers=("etag",)
    ),
    "get /v1/entities/{category}/{id}/explain": Answers(
        good=_json("Explanation"), problems=("404", "410"), headers=("etag",)
    ),
    "get /v1/subscriptions": Answers(good=_json("Subscriptions")),
    "put /v1/subscriptions/{name}": Answers(
        good=_json("Subscription", "200", "201"), problems=("400", "409", "413")
    ),
    "get /v1/subscriptions/{name}": Answers(good=_json("Subscription"), problems=("404",)),
    "delete /v1/subscriptions/{name}": Answers(good={"204": {}}, problems=("404",)),
    "get /v1/subscriptions/{name}/next": Answers(good=_json("Given"), problems=("404", "429")),
    "post /v1/subscriptions/{name}/ack": _SETTLED,
    "post /v1/subscriptions/{name}/nack": _SETTLED,
    "post /v1/subscriptions/{name}/park": _SETTLED,
    "get /v1/subscriptions/{name}/parked": Answers(good=_json("Parked"), problems=("404",)),
    "post /v1/subscriptions/{name}/replay-parked": Answers(
        good=_json("Replayed"), problems=("400", "404", "413")
    ),
    "get /v1/projections": Answers(good=_json("Projections")),
    "get /v1/projections/{projection}": Answers(good=_json("Projection"), problems=("404",)),
    "get /v1/projections/{projection}/rows": Answers(
        good=_json("Rows"), problems=("404", "409"), headers=("etag", "penstock-epoch")
    ),
    "get /v1/projections/{projection}/changes": Answers(
        good={"200": {SSE: TEXT}}, problems=("404", "429")
    ),
    "get /v1/tables": Answers(good=_json("Tables")),
    "get /v1/tables/{table}": Answers(good=_json("Table"), problems=("404",)),
    "get /v1/epochs": Answers(good=_json("Epochs")),
    "get /v1/epochs/{epoch}": Answers(
        good=_json("Epoch"), problems=("404",), headers=("penstock-epoch",)
    ),
    "get /health/live": Answers(good=_json("Live")),
    "get /health/ready": Answers(good=_json("Ready", "200", "503")),
    "get /metrics": Answers(good={"200": {"text/plain": TEXT}}),
    "post /v1/streams/{stream}": Answers(
        good=_json("Appended", "200", "201"),
        problems=_WRITES,
        headers=("etag", "penstock-category"),
    ),
    "post /v1/append": Answers(
        good=_json("AppendedToStreams", "200", "201"),
        problems=_WRITES,
        headers=("penstock-category",),
    ),
}

_EVENTS: Final = listed(ref("NewEvent"), minItems=1, maxItems=1_000)
_CONDITION: Final[Shape] = record("query Query", also={"after": WHOLE | {"maximum": MAX_VERSION}})
_CONDITIONAL: Final = [
    {
        "name": name,
        "in": "header",
        "schema": {"type": "string", "pattern": r'^(\*|"[0-9]{1,18}")$'},
        "description": "Instead of expected_version",
    }
    for name in ("If-Match", "If-None-Match")
]
_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    "description": "Makes a retry without event ids safe",
}


def _append_body(**more: Shape) -> Shape:
    return {
        "type": "object",
        "required": ["events", *more],
        "additionalProperties": False,
        "properties": {**more, "expected_version": EXPECTED, "events": _EVENTS},
    }


def _body(media: dict[str, Shape]) -> dict[str, Any]:
    return {"required": True, "content": {name: {"schema": media[name]} for name in media}}


APPEND_PATHS: Final[dict[str, dict[str, Any]]] = {
    "/v1/streams/{stream}": {
        "post": {
            "summary": "Append events to one stream",
            "tags": ["events"],
            "parameters": [
                {"name": "stream", "in": "path", "required": True, "schema": STREAM_NAME},
                *_CONDITIONAL,
                _KEY,
            ],
            "requestBody": _body(
                {
                    JSON: _append_body(),
                    EVENT: ref("CloudEvent"),
                    BATCH: listed(ref("CloudEvent"), minItems=1, maxItems=1_000),
                }
            ),
        }
    },
    "/v1/append": {
        "post": {
            "summary": "Append events to several streams, all or nothing",
            "tags": ["events"],
            "parameters": [_KEY],
            "requestBody": _body(
                {
                    JSON: {
                        "type": "object",
                        "required": ["appends"],
                        "additionalProperties": False,
                        "properties": {
                            "appends": listed(_append_body(stream=STREAM_NAME), minItems=1),
                            "condition": _CONDITION,
                        },
                    }
                }
            ),
        }
    },
}


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """Add the appends, the answers of all operations and the components to a document."""
    for path, operations in APPEND_PATHS.items():
        document["paths"].setdefault(path, {}).update(operations)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(COMPONENTS)
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{}, {"token": []}]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            answers = ANSWERS.get(f"{method} {path}", Answers(good={}))
            # With `If-Match` any state that is read may be another one.
            also = ("412",) if method == "get" else ()
            operation["responses"] = _responses(answers, also)
            for media in operation.get("requestBody", {}).get("content", {}).values():
                _lift(media["schema"], components["schemas"])
            for parameter in operation.get("parameters", []):
                _sharpen(parameter)
    return document


def _lift(shape: Shape, components: dict[str, Shape]) -> None:
    """Move what a model defines beside itself to the components, where references find it."""
    for name, definition in shape.pop("$defs", {}).items():
        _lift(definition, components)
        components[name] = definition
    for key, value in shape.items():
        match value:
            case str() if key == "$ref":
                shape[key] = value.replace("#/$defs/", "#/components/schemas/")
            case dict():
                _lift(value, components)
            case list():
                for each in value:
                    if isinstance(each, dict):
                        _lift(each, components)
            case _:
                continue


def _responses(answers: Answers, also: tuple[str, ...]) -> dict[str, Any]:
    headers = {name: {"schema": {"type": "string"}} for name in answers.headers}
    responses: dict[str, Any] = {
        status: {
            "description": "Done" if status != "200" else "Done, or found",
            **({"headers": headers} if headers else {}),
            **({"content": {name: {"schema": media[name]} for name in media}} if media else {}),
        }
        for status, media in answers.good.items()
    }
    for status in sorted({*_ALWAYS, *also, *answers.problems} - responses.keys()):
        responses[status] = {
            "description": _PROBLEMS[status],
            "content": {CONTENT_TYPE: {"schema": ref("Problem")}},
        }
    return responses


def _sharpen(parameter: dict[str, Any]) -> None:
    """Say what the framework does not: what is left out is not null, and how things are named."""
    shape = parameter["schema"]
    branches = [each for each in shape.get("anyOf", []) if each != {"type": "null"}]
    if len(branches) == 1:
        del shape["anyOf"]
        shape.update(branches[0])
    if parameter["in"] == "path":
        shape.update(PATH_PARTS.get(parameter["name"], {}))
