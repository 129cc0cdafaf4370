"""CloudEvents 1.0 in and out: one mapping, in structured, batch and binary mode.

    CloudEvent -> event of an append          event as reads show it -> CloudEvent

The store's own names win: `subject` is the stream, `type` is `category.type`, `source` is the
store. What a producer named otherwise is kept in the event's metadata, under `cloudevents`, and
given back as it came. The mapping is written down in `docs/reference/http.md`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote_to_bytes
from uuid import NAMESPACE_URL, UUID, uuid5

import orjson

from eventstore.names import category_of
from kernel.errors import InvalidRequest
from schemas.json_text import dump, parse
from schemas.json_values import shown, uuid_of
from service.bodies import parse_json
from service.limits import check_depth, too_deep
from service.problems import refusal

EVENT: Final = "application/cloudevents+json"
BATCH: Final = "application/cloudevents-batch+json"
KEPT: Final = "cloudevents"
"""The key of the metadata under which a producer's own attributes are kept."""

_ATTRIBUTE: Final = re.compile(r"[a-z0-9]{1,64}")
_REQUIRED: Final = ("id", "source", "type")
_JSON: Final = re.compile(r"application/json|[\w.+-]+/[\w.-]+\+json")
_QUOTED: Final = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_TRACING: Final = {
    "traceparent": "traceparent",
    "tracestate": "tracestate",
    "correlationid": "correlation_id",
    "causationid": "causation_id",
}
# What a store says of its own about an event: another store's word for it is not taken over.
_OURS: Final = frozenset(
    {"version", "position", "sequence", "recordedtime", "schemaid", "partitionkey"}
)
_RENAMED: Final = frozenset({"id", "source", "type", "subject"})
_MAPPED: Final = (
    _OURS
    | _RENAMED
    | {"specversion", "time", "datacontenttype", "data", "stream", "tags", "metadata", *_TRACING}
)
_SEQUENCE_DIGITS: Final = 19


def append_body(headers: Mapping[bytes, bytes], stream: str, body: bytes, depth: int) -> bytes:
    """Return the body of an append: as it is, or made out of the CloudEvents that it holds."""
    content_type = headers.get(b"content-type", b"").lower()
    if content_type.startswith(b"application/cloudevents"):
        return _structured(content_type.decode("latin-1"), stream, body, depth)
    if b"ce-specversion" in headers or b"ce-id" in headers:
        attributes = {
            name[3:].decode("latin-1"): _header_text(name, value)
            for name, value in headers.items()
            if name.startswith(b"ce-")
        }
        _check_data_type(content_type.decode("latin-1"), "content-type")
        event = _event(attributes | {"data": parse_json(body, depth)}, stream, "$", depth)
        return dump({"events": [event]})
    return body


def _header_text(name: bytes, value: bytes) -> str:
    """Return what a header says: out of quotes, then percent-decoded (HTTP binding, 3.1.3.2).

    What is no text is refused: in place of all such bytes stood the same sign, and two ids that
    differ in them would be one.
    """
    if _QUOTED.fullmatch(value):
        value = _ESCAPED.sub(rb"\1", value[1:-1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"the header {name.decode('latin-1')} is not UTF-8",
            remedy="Write what is not ASCII in UTF-8, each byte as %XX.",
        ) from None


def cloud_event(event: Mapping[str, Any], store_id: str) -> dict[str, Any]:
    """Return a recorded event, as reads show it, as a CloudEvent in structured mode."""
    metadata = dict(event["metadata"])
    kept = metadata.pop(KEPT, None)
    document: dict[str, Any] = {
        "specversion": "1.0",
        "id": event["id"],
        "source": f"/stores/{store_id}",
        "type": f"{event['category']}.{event['type']}",
        "subject": event["stream"],
        "time": event["occurred_at"],
        "datacontenttype": "application/json",
        **(_own(kept) if isinstance(kept, Mapping) else {}),
        "stream": event["stream"],
        "version": event["version"],
        "position": str(event["position"]),
        # As the CloudEvents extension wants it: texts whose order is the order of events.
        "sequence": str(event["position"]).zfill(_SEQUENCE_DIGITS),
        "partitionkey": event["stream"],
        "recordedtime": event["recorded_at"],
        "schemaid": event["schema_id"],
    }
    if event["tags"]:
        document["tags"] = " ".join(event["tags"])
    for attribute, key in _TRACING.items():
        if isinstance(metadata.get(key), str):
            document[attribute] = metadata.pop(key)
    if metadata:
        document["metadata"] = orjson.dumps(metadata).decode()
    return document | {"data": event["data"]}


def _own(kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the producer's attributes. Whoever appends without CloudEvents may write the key too:
    only what could have come from one is given.
    """
    return {
        name: value
        for name, value in kept.items()
        if (isinstance(value, str) and value if name in _RENAMED else name not in _MAPPED)
        and _ATTRIBUTE.fullmatch(name)
        and isinstance(value, str | int | bool)
    }


def _structured(content_type: str, stream: str, body: bytes, depth: int) -> bytes:
    media = content_type.partition(";")[0].strip()
    if media == EVENT:
        return dump({"events": [_event(parse_json(body, depth), stream, "$", depth)]})
    if media == BATCH:
        batch = parse_json(body, depth)
        if not isinstance(batch, list):
            raise InvalidRequest("$: expected a list of CloudEvents")
        events = [_event(each, stream, f"$[{at}]", depth) for at, each in enumerate(batch)]
        return dump({"events": events})
    raise _unsupported(media, "content-type")


def _event(attributes: Any, stream: str, place: str, depth: int) -> dict[str, Any]:
    """Return a CloudEvent as an event of an append."""
    _check_attributes(attributes, place)
    kept: dict[str, Any] = {"source": attributes["source"]}
    id_ = _id(attributes["source"], attributes["id"])
    if str(id_) != attributes["id"]:
        kept["id"] = attributes["id"]
    type_ = _type(attributes["type"], category_of(stream), place)
    if attributes["type"] not in (type_, f"{category_of(stream)}.{type_}"):
        kept["type"] = attributes["type"]
    if attributes.get("subject") not in (None, stream):
        kept["subject"] = attributes["subject"]
    metadata = _metadata(attributes.get("metadata"), place, depth)
    for name, value in attributes.items():
        if name in _TRACING:
            metadata[_TRACING[name]] = value
        elif name not in _MAPPED and value is not None:
            kept[name] = value
    event = {
        "id": str(id_),
        "type": type_,
        "data": attributes["data"],
        "metadata": metadata | {KEPT: kept},
    }
    if attributes.get("time") is not None:
        event["occurred_at"] = attributes["time"]
    if attributes.get("tags"):
        event["tags"] = attributes["tags"].split()
    return event


def _check_attributes(attributes: Any, place: str) -> None:
    if not isinstance(attributes, dict):
        raise InvalidRequest(f"{place}: expected a CloudEvent, an object")
    if attributes.get("specversion") != "1.0":
        raise InvalidRequest(
            f"{place}.specversion: {shown(attributes.get('specversion'))} is not supported",
            remedy="Send CloudEvents 1.0, with specversion 1.0.",
        )
    for name in _REQUIRED:
        if not isinstance(attributes.get(name), str) or not attributes[name]:
            raise InvalidRequest(f"{place}.{name}: expected a text that is not empty")
    if "data_base64" in attributes:
        raise _unsupported("data_base64", place)
    if attributes.get("datacontenttype") is not None:
        _check_data_type(str(attributes["datacontenttype"]), f"{place}.datacontenttype")
    if not isinstance(attributes.get("data"), dict):
        raise InvalidRequest(f"{place}.data: expected an object")
    _check_values({name: attributes[name] for name in attributes if name != "data"}, place)


def _check_values(attributes: Mapping[str, object], place: str) -> None:
    for name, value in attributes.items():
        if not _ATTRIBUTE.fullmatch(name):
            raise InvalidRequest(
                f"{place}: {shown(name)} is no attribute name",
                remedy="Names of attributes are made of a-z and 0-9.",
            )
        if not isinstance(value, str | int | bool | None):
            raise InvalidRequest(f"{place}.{name}: expected a text, whole number or boolean")
        if name in ("subject", "time", "tags", *_TRACING) and not isinstance(value, str | None):
            raise InvalidRequest(f"{place}.{name}: expected a text")


def _check_data_type(media: str, place: str) -> None:
    if media and not _JSON.fullmatch(media.partition(";")[0].strip().lower()):
        raise _unsupported(media, place)


def _id(source: str, id_: str) -> UUID:
    """Return the id itself where it is a UUID, else one that source and id always give."""
    try:
        found = uuid_of(id_)
    except ValueError:
        return uuid5(uuid5(NAMESPACE_URL, source), id_)
    return found


def _type(type_: str, category: str, place: str) -> str:
    """Return the last part of `type`; the one before it, if any, must be the category."""
    *before, last = type_.split(".")
    if not before or before[-1] == category:
        return last
    raise InvalidRequest(
        f"{place}.type: {shown(type_)} does not belong into category {category}",
        remedy=f"Name it {category}.{last}, with any prefix and a dot in front, or append to a "
        f"stream of category {before[-1]}.",
    )


def _metadata(text: object, place: str, depth: int) -> dict[str, Any]:
    if text is None:
        return {}
    body = text.encode() if isinstance(text, str) else b""
    try:
        metadata = parse(body)
    except RecursionError:
        raise too_deep(depth) from None
    except orjson.JSONDecodeError:
        metadata = None
    if not isinstance(metadata, dict):
        raise InvalidRequest(f"{place}.metadata: expected a JSON object as text")
    # It is written out again before the request is measured, which fails beyond some depth.
    check_depth(metadata, body, depth)
    return metadata


def _unsupported(found: str, place: str) -> Exception:
    return refusal(
        415,
        "unsupported-media-type",
        "Only JSON can be taken",
        f"{place}: {found[:100]}",
        f"Send {EVENT}, {BATCH}, or data in JSON with ce- headers.",
    )
