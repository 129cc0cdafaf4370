"""The shapes of requests and answers, as components of the OpenAPI document.

A word stands for most shapes: `text`, `whole?` for one that may be null, `[Event]` for a list of
what the component `Event` describes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from eventstore.names import CATEGORY

Shape = dict[str, Any]

WHOLE: Final[Shape] = {"type": "integer", "minimum": 0}
TEXT: Final[Shape] = {"type": "string"}
UUID: Final[Shape] = {"type": "string", "format": "uuid"}
TIME: Final[Shape] = {"type": "string", "format": "date-time"}
OBJECT: Final[Shape] = {"type": "object"}
SECONDS: Final[Shape] = {"type": "number", "minimum": 0}
_WORDS: Final[dict[str, Shape]] = {
    "whole": WHOLE,
    "text": TEXT,
    "uuid": UUID,
    "time": TIME,
    "object": OBJECT,
    "any": {},
    "seconds": SECONDS,
    "flag": {"type": "boolean"},
}
MAX_VERSION: Final = 2**62
"""Greater than any version or position, and small enough for PostgreSQL."""

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


def fields(text: str) -> dict[str, Shape]:
    """Return the shapes of fields by name, as `stream text, version whole` says them."""
    return {name: _meant(word) for name, word in map(str.split, text.split(","))}


def record(
    text: str = "", *, optional: Collection[str] = (), also: Mapping[str, Shape] | None = None
) -> Shape:
    """Return the shape of an object: the fields of a text, and those `also` that no word says.

    All of them are there but the optional ones.
    """
    properties = {**(fields(text) if text else {}), **(also or {})}
    return {
        "type": "object",
        "required": [name for name in properties if name not in optional],
        "properties": properties,
    }


def chosen(*words: str) -> Shape:
    """Return the shape of a text that is one of some words."""
    return {"type": "string", "enum": [*words]}


def ref(name: str) -> Shape:
    """Return a reference to a component."""
    return {"$ref": f"#/components/schemas/{name}"}


def _meant(word: str) -> Shape:
    if word.endswith("?"):
        return {"anyOf": [_meant(word[:-1]), {"type": "null"}]}
    if word.startswith("["):
        return listed(_meant(word[1:-1]))
    return _WORDS[word] if word in _WORDS else ref(word)


_QUERY_ITEM: Final[Shape] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "types": listed({"type": "string", "pattern": r"^([a-z][a-z0-9_]{0,62}\.)?[A-Za-z]\w*$"}),
        "tags": listed(TAG),
    },
}
_OF_STREAM: Final = (
    "stream text, version whole, deleted flag, tombstoned flag, truncate_before whole, "
    "max_age_s whole?, max_count whole?, archived_up_to whole"
)
_ENTITY: Final = (
    "stream text, category text, id text, version whole, position whole, recorded_at time, "
    "decider_version whole, state any"
)
_PROJECTION: Final = (
    "name text, generation whole, epoch whole?, newest_epoch whole, rows whole, "
    "lag_events whole, lag_s seconds"
)
_DEPLOYED: Final[dict[str, Shape]] = {
    "status": chosen("live", "paused"),
    "text": TEXT | {"description": "Its SQL"},
}
_EPOCH: Final = record(
    "epoch whole, run_id text, batch_id whole, end object, heads object, cuts object, "
    "pending_from object, tables object, counts object, timings_ms object, topics object, "
    "at time, installs [whole]"
)
_TABLE: Final = (
    "name text, path text, version whole, rows whole, bytes whole, files whole, "
    "committed_at time, held text?"
)

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
        "id uuid, stream text, category text, version whole, position whole, type text, "
        "schema_id whole, data object?, metadata object, tags [text], occurred_at time, "
        "recorded_at time",
        also={"unreadable": TEXT | {"description": "Why the data cannot be shown and are null"}},
        optional=("unreadable",),
    ),
    "CloudEvent": {
        "type": "object",
        "required": ["specversion", "id", "source", "type", "data"],
        "properties": {
            "specversion": {"const": "1.0"},
            **{name: {"type": "string", "minLength": 1} for name in ("id", "source", "type")},
            **fields("subject text, time time, data object"),
        },
    },
    "Appended": record(
        "stream text, first_version whole, last_version whole, first_position whole, "
        "last_position whole"
    ),
    "AppendedToStreams": record("appends [Appended]"),
    "Query": listed(_QUERY_ITEM, minItems=1),
    "StreamPage": record("stream text, version whole, events [Event]"),
    "EventPage": record("events [Event], head whole, next_after whole"),
    "StreamList": record(
        "next_after text?",
        also={
            "streams": listed(
                record(
                    "stream text, category text, version whole, position whole, "
                    "recorded_at time, deleted flag, tombstoned flag"
                )
            )
        },
    ),
    "CategoryList": record(
        also={
            "categories": listed(
                record("category text, streams whole, more flag, position whole, recorded_at time")
            )
        }
    ),
    "StoreId": record("store text, head whole"),
    "FeedMark": record(
        "position whole, problem Problem",
        also={"event": chosen("caught-up", "checkpoint", "heartbeat", "evicted", "failed")},
        optional=("position", "problem"),
    ),
    "StreamMetadata": record(_OF_STREAM),
    "StreamChanged": record(f"{_OF_STREAM}, position whole?"),
    "Imported": record("lines whole, appended whole, repeated whole, last_position whole"),
    "Encoded": record("stream text, events [object]"),
    "Schema": record("subject text, id whole, version whole, schema any"),
    "SchemaList": record("schemas [Schema]"),
    "SchemaVersions": record("subject text, compatibility text, versions [Schema]"),
    "Compatibility": record("subject text, compatibility text"),
    "SchemaCheck": record("subject text, compatible flag, complaints [text]"),
    "CommandAnswer": record("stream text, version whole?, position whole?, events [Event]"),
    "Entity": record(_ENTITY),
    "Explanation": record(
        f"{_ENTITY}, before any, earlier whole?",
        also={
            "events": listed(
                record(
                    "event Event",
                    also={
                        "changes": listed(
                            record("field text, from any, to any", optional=("from", "to"))
                        )
                    },
                )
            )
        },
    ),
    "Deciders": record(
        also={
            "deciders": listed(
                record("category text, version whole, commands [text], snapshot_every whole?")
            )
        }
    ),
    "Subscription": record(
        "name text, started_after whole, checkpoint whole, head whole, lag_events whole, "
        "lag_seconds seconds, in_flight whole, waiting whole, parked whole, redelivered whole, "
        "max_deliveries whole, ack_timeout_s seconds, backoff_s seconds, backoff_cap_s seconds, "
        "max_in_flight whole, look_ahead whole, max_parked whole",
        also={
            "state": chosen("behind", "caught-up", "parked-full"),
            "filter": {
                "type": "object",
                "properties": fields("category text?, type text?, stream_prefix text?, tag text?"),
            },
        },
    ),
    "Subscriptions": record("subscriptions [Subscription]"),
    "Given": record(
        "caught_up flag",
        also={"events": listed(record("attempt whole, ack_by time, event Event"))},
    ),
    "Settled": record("done [uuid], already [uuid], refused [uuid]"),
    "Parked": record(
        also={
            "parked": listed(
                record(
                    "id uuid, stream text, position whole, deliveries whole, reason text, "
                    "parked_at time"
                )
            )
        }
    ),
    "Replayed": record("replayed whole, remaining whole"),
    "Projections": record(
        also={
            "projections": listed(
                record(
                    f"{_PROJECTION}, stands_still text?",
                    also={**_DEPLOYED, "behind": {"type": "integer"}},
                )
            )
        }
    ),
    "Projection": record(
        f"{_PROJECTION}, key [text], freshness_s seconds, late_s seconds, state_bytes whole?, "
        "error text?",
        also=_DEPLOYED,
    ),
    "Rows": record(
        "projection text, generation whole, status text, epoch whole, version whole, key [text], "
        "rows [object], next_after text?",
        also={"applied": {"type": "boolean", "description": "They have `after_position`"}},
        optional=("applied",),
    ),
    "Tables": record(
        also={"tables": listed(record(_TABLE, optional=fields(_TABLE).keys() - {"name", "held"}))}
    ),
    "Table": record(
        _TABLE,
        also={
            "commits": listed(
                record("version whole, at time, operation text, rows whole?, engine text")
            )
        },
    ),
    "Epoch": _EPOCH,
    "Epochs": record("next_before whole?", also={"epochs": listed(_EPOCH)}),
    "Live": record(also={"status": {"const": "live"}}),
    "Ready": record(
        also={
            "status": chosen("ready", "degraded", "unready"),
            "reasons": listed(record("part text, reason text")),
        },
        optional=("reasons",),
    ),
    "Problem": record(
        "type text, title text, detail text, remedy text", also={"status": {"type": "integer"}}
    ),
}
