"""The shapes of requests and answers, as components of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Final

from eventstore.names import CATEGORY

Shape = dict[str, Any]

WHOLE: Final[Shape] = {"type": "integer", "minimum": 0}
TEXT: Final[Shape] = {"type": "string"}
UUID: Final[Shape] = {"type": "string", "format": "uuid"}
TIME: Final[Shape] = {"type": "string", "format": "date-time"}
OBJECT: Final[Shape] = {"type": "object"}
MAX_VERSION: Final = 2**62

STREAM_NAME: Final[Shape] = {
    "type": "string",
    "pattern": rf"^{CATEGORY}-[^\s/\x00-\x1f\x7f]+$",
    "maxLength": 255,
    "examples": ["order-1042"],
    "description": "category-id; the id has no blanks and no '/'",
}
EVENT_TYPE: Final[Shape] = {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_]{0,127}$"}
TAG: Final[Shape] = {"type": "string", "pattern": r"^[^\s\x00-\x1f\x7f]+$", "maxLength": 255}
PATH_PARTS: Final[dict[str, Shape]] = {
    "stream": STREAM_NAME,
    "category": {"type": "string", "pattern": f"^{CATEGORY}$"},
    "id": {"type": "string", "pattern": r"^[^\s/\x00-\x1f\x7f]+$", "maxLength": 190},
    "command": {"type": "string", "pattern": f"^{CATEGORY}$"},
    "subject": {"type": "string", "pattern": rf"^{CATEGORY}\.[A-Za-z][A-Za-z0-9_]{{0,127}}$"},
    "name": {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,62}$"},
    "projection": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": 255},
    "table": {"type": "string", "pattern": r"^[A-Za-z_][^\s\x00-\x1f\x7f]*$", "maxLength": 600},
}
"""Parts of paths, by the names that routes give them."""

EXPECTED: Final[Shape] = {
    "default": "any",
    "oneOf": [
        {"type": "integer", "minimum": 0, "maximum": MAX_VERSION},
        {"type": "string", "enum": ["any", "no_stream", "stream_exists"]},
    ],
}


def listed(items: Shape, **more: Any) -> Shape:
    """Return the shape of a list."""
    return {"type": "array", "items": items, **more}


def record(properties: dict[str, Shape], *, optional: tuple[str, ...] = ()) -> Shape:
    """Return the shape of an object; all fields are there but the optional ones."""
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def or_null(shape: Shape) -> Shape:
    """Return the shape of something that may be null."""
    return {"anyOf": [shape, {"type": "null"}]}


def ref(name: str) -> Shape:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


_QUERY_ITEM: Final[Shape] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "types": listed({"type": "string", "pattern": r"^([a-z][a-z0-9_]{0,62}\.)?[A-Za-z]\w*$"}),
        "tags": listed(TAG),
    },
}
_APPENDED: Final[Shape] = record(
    {
        "stream": TEXT,
        "first_version": WHOLE,
        "last_version": WHOLE,
        "first_position": WHOLE,
        "last_position": WHOLE,
    }
)
_STANDING: Final[Shape] = record(
    {
        "name": TEXT,
        "state": {"type": "string", "enum": ["behind", "caught-up", "parked-full"]},
        "filter": {
            "type": "object",
            "properties": {
                name: or_null(TEXT) for name in ("category", "type", "stream_prefix", "tag")
            },
        },
        **{
            name: WHOLE
            for name in (
                *("started_after", "checkpoint", "head", "lag_events", "in_flight"),
                *("waiting", "parked", "redelivered", "max_deliveries", "max_in_flight"),
                *("look_ahead", "max_parked"),
            )
        },
        **{
            name: {"type": "number", "minimum": 0}
            for name in ("lag_seconds", "ack_timeout_s", "backoff_s", "backoff_cap_s")
        },
    }
)

_STANDING_OF_STREAM: Final[dict[str, Shape]] = {
    "stream": TEXT,
    "version": WHOLE,
    "deleted": {"type": "boolean"},
    "tombstoned": {"type": "boolean"},
    "truncate_before": WHOLE,
    "max_age_s": or_null(WHOLE),
    "max_count": or_null(WHOLE),
    "archived_up_to": WHOLE,
}

_ENTITY: Final[dict[str, Shape]] = {
    "stream": TEXT,
    "category": TEXT,
    "id": TEXT,
    "version": WHOLE,
    "position": WHOLE,
    "recorded_at": TIME,
    "decider_version": WHOLE,
    "state": {},
}
_CHANGE: Final[Shape] = record({"field": TEXT, "from": {}, "to": {}}, optional=("from", "to"))

COMPONENTS: Final[dict[str, Shape]] = {
    "NewEvent": {
        "type": "object",
        "required": ["type", "data"],
        "additionalProperties": False,
        "properties": {
            "id": UUID | {"description": "Makes a retry safe"},
            "type": EVENT_TYPE,
            "data": OBJECT | {"description": "Fits the schema of category.type"},
            "metadata": OBJECT,
            "tags": listed(TAG, maxItems=16),
            "occurred_at": TIME,
        },
    },
    "Event": record(
        {
            "id": UUID,
            "stream": TEXT,
            "category": TEXT,
            "version": WHOLE,
            "position": WHOLE,
            "type": TEXT,
            "schema_id": WHOLE,
            "data": or_null(OBJECT),
            "metadata": OBJECT,
            "tags": listed(TEXT),
            "occurred_at": TIME,
            "recorded_at": TIME,
            "unreadable": TEXT | {"description": "Why the data cannot be shown and are null"},
        },
        optional=("unreadable",),
    ),
    "CloudEvent": {
        "type": "object",
        "required": ["specversion", "id", "source", "type", "data"],
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "minLength": 1},
            "source": {"type": "string", "minLength": 1},
            "type": {"type": "string", "minLength": 1},
            "subject": TEXT,
            "time": TIME,
            "data": OBJECT,
        },
    },
    "Appended": _APPENDED,
    "AppendedToStreams": record({"appends": listed(ref("Appended"))}),
    "Query": listed(_QUERY_ITEM, minItems=1),
    "StreamPage": record({"stream": TEXT, "version": WHOLE, "events": listed(ref("Event"))}),
    "EventPage": record({"events": listed(ref("Event")), "head": WHOLE, "next_after": WHOLE}),
    "StreamList": record(
        {
            "streams": listed(
                record(
                    {
                        "stream": TEXT,
                        "category": TEXT,
                        "version": WHOLE,
                        "position": WHOLE,
                        "recorded_at": TIME,
                        "deleted": {"type": "boolean"},
                        "tombstoned": {"type": "boolean"},
                    }
                )
            ),
            "next_after": or_null(TEXT),
        }
    ),
    "CategoryList": record(
        {
            "categories": listed(
                record(
                    {
                        "category": TEXT,
                        "streams": WHOLE,
                        "more": {"type": "boolean"},
                        "position": WHOLE,
                        "recorded_at": TIME,
                    }
                )
            )
        }
    ),
    "StoreId": record({"store": TEXT, "head": WHOLE}),
    "FeedMark": record(
        {
            "event": {
                "type": "string",
                "enum": ["caught-up", "checkpoint", "heartbeat", "evicted", "failed"],
            },
            "position": WHOLE,
            "problem": ref("Problem"),
        },
        optional=("position", "problem"),
    ),
    "StreamMetadata": record(_STANDING_OF_STREAM),
    "StreamChanged": record(_STANDING_OF_STREAM | {"position": or_null(WHOLE)}),
    "Imported": record(
        {"lines": WHOLE, "appended": WHOLE, "repeated": WHOLE, "last_position": WHOLE}
    ),
    "Encoded": record({"stream": TEXT, "events": listed(OBJECT)}),
    "Schema": record({"subject": TEXT, "id": WHOLE, "version": WHOLE, "schema": {}}),
    "SchemaList": record({"schemas": listed(ref("Schema"))}),
    "SchemaVersions": record(
        {"subject": TEXT, "compatibility": TEXT, "versions": listed(ref("Schema"))}
    ),
    "Compatibility": record({"subject": TEXT, "compatibility": TEXT}),
    "SchemaCheck": record(
        {"subject": TEXT, "compatible": {"type": "boolean"}, "complaints": listed(TEXT)}
    ),
    "CommandAnswer": record(
        {
            "stream": TEXT,
            "version": or_null(WHOLE),
            "position": or_null(WHOLE),
            "events": listed(ref("Event")),
        }
    ),
    "Entity": record(_ENTITY),
    "Explanation": record(
        {
            **_ENTITY,
            "before": {},
            "events": listed(record({"event": ref("Event"), "changes": listed(_CHANGE)})),
            "earlier": or_null(WHOLE),
        }
    ),
    "Deciders": record(
        {
            "deciders": listed(
                record(
                    {
                        "category": TEXT,
                        "version": WHOLE,
                        "commands": listed(TEXT),
                        "snapshot_every": or_null(WHOLE),
                    }
                )
            )
        }
    ),
    "Subscription": _STANDING,
    "Subscriptions": record({"subscriptions": listed(ref("Subscription"))}),
    "Given": record(
        {
            "events": listed(record({"attempt": WHOLE, "ack_by": TIME, "event": ref("Event")})),
            "caught_up": {"type": "boolean"},
        }
    ),
    "Settled": record({name: listed(UUID) for name in ("done", "already", "refused")}),
    "Parked": record(
        {
            "parked": listed(
                record(
                    {
                        "id": UUID,
                        "stream": TEXT,
                        "position": WHOLE,
                        "deliveries": WHOLE,
                        "reason": TEXT,
                        "parked_at": TIME,
                    }
                )
            )
        }
    ),
    "Replayed": record({"replayed": WHOLE, "remaining": WHOLE}),
    "Live": record({"status": {"const": "live"}}),
    "Ready": record(
        {
            "status": {"type": "string", "enum": ["ready", "degraded", "unready"]},
            "reasons": listed(record({"part": TEXT, "reason": TEXT})),
        },
        optional=("reasons",),
    ),
    "Problem": record(
        {
            "type": TEXT,
            "title": TEXT,
            "status": {"type": "integer"},
            "detail": TEXT,
            "remedy": TEXT,
        }
    ),
}
