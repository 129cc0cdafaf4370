"""Records of many events as Arrow columns at once: the quick way of `decode.decode_event`.

It answers only where it gives exactly what the way one by one gives, with None or an error
otherwise: records whose headers are not those that the outbox sends, in its order and its spelling,
or of which one is to be rejected, are decoded one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from eventstore.headers import metadata_of, tags_of
from kernel.positions import LARGEST
from schemas.columns import decode_rows
from schemas.records import FORMAT_AVRO

_TEXTS = ("store_id", "id", "stream", "category", "type")
_NUMBERS = {"position": 1, "version": 0}
"""Names, and the least that they may be."""
_TIMES = ("occurred_at", "recorded_at")
_OPTIONAL = ("subject", "key_id", "metadata", "tags")
_NEEDED = (*_TEXTS, *_NUMBERS, *_TIMES, "schema_id", "data_format")
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_NATURAL = "^[0-9]{1,18}$"
_MOMENT = (
    "^[1-9][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9]:[0-5][0-9]"
    "([.][0-9]{1,6})?(Z|[+]00:00)$"
)
_MICROS = pa.timestamp("us", "UTC")


def read_events(
    topic: str, records: pa.RecordBatch, schema_id: int, schema_json: str
) -> pa.Table | None:
    """Decode records of one topic and schema, one row each, in order, named as in `DECODED`.

    `records` have `key`, `value` and `headers`; all values are framed with `schema_id`. None: some
    record is not an ordinary event. Raises what reading texts, numbers, JSON and bodies raises:
    some record is to be rejected, or cannot be read in this way.
    """
    texts = _texts(records.column("headers"))
    if texts is None or not _in_place(topic, records, texts, schema_id):
        return None
    decode_rows(records.column("value"), schema_json, "event")
    return _rows(records, texts, schema_id)


def _texts(headers: pa.Array) -> dict[str, pa.Array] | None:
    """Return the text of each header, by its name; None where records have different headers."""
    n = len(headers)
    flat = headers.flatten()
    if headers.null_count or n == 0 or len(flat) % n:
        return None
    each = len(flat) // n
    names, values = flat.field("key"), flat.field("value")
    own = names.slice(0, each).to_pylist()
    places = np.arange(n, dtype=np.int64) * each
    lengths = pc.list_value_length(headers)
    if len({*own}) < each or not set(_NEEDED) <= {*own} or len(pc.unique(lengths)) != 1:
        return None
    found: dict[str, pa.Array] = {}
    for place, name in enumerate(own):
        if not pc.all(pc.equal(names.take(pa.array(places + place)), name)).as_py():
            return None
        found[name] = values.take(pa.array(places + place)).cast(pa.string())
    return found


def _in_place(
    topic: str, records: pa.RecordBatch, texts: dict[str, pa.Array], schema_id: int
) -> bool:
    """Say whether all headers are there and agree with each other and with where they lie."""
    alike = {
        "category": topic.rpartition(".")[2],
        "schema_id": str(schema_id),
        "data_format": str(FORMAT_AVRO),
    }
    return (
        all(texts[name].null_count == 0 for name in _NEEDED)
        and all(_all(pc.not_equal(texts[name], "")) for name in _TEXTS)
        and all(_all(pc.equal(texts[name], same)) for name, same in alike.items())
        and records.column("key").null_count == 0
        and _all(pc.equal(texts["stream"].cast(pa.binary()), records.column("key")))
        and _match(texts["id"], _UUID)
        and all(_match(texts[name], _NATURAL) for name in _NUMBERS)
        and all(_match(texts[name], _MOMENT) for name in _TIMES)
    )


def _rows(records: pa.RecordBatch, texts: dict[str, pa.Array], schema_id: int) -> pa.Table | None:
    n = records.num_rows
    numbers = {name: texts[name].cast(pa.int64()) for name in _NUMBERS}
    if not all(
        _all(pc.and_(pc.greater_equal(numbers[name], least), pc.less_equal(numbers[name], LARGEST)))
        for name, least in _NUMBERS.items()
    ):
        return None
    occurred, recorded = (texts[name].cast(_MICROS) for name in _TIMES)
    told = {name: _told(texts.get(name), n) for name in _OPTIONAL}
    metadata = _each(told["metadata"], lambda text: json.dumps(dict(metadata_of(text))))
    tags = _each(told["tags"], lambda text: list(tags_of(text)), pa.list_(pa.string()))
    return pa.table(
        {
            "kind": pa.array(["event"] * n),
            "source": texts["store_id"],
            "table": texts["category"],
            "position": numbers["position"],
            "event_id": texts["id"],
            "stream": texts["stream"],
            "version": numbers["version"],
            "type": texts["type"],
            "data_format": pa.array([FORMAT_AVRO] * n, pa.int32()),
            "subject": told["subject"],
            "key_id": told["key_id"],
            "metadata": metadata,
            "tags": tags,
            "event_time": occurred,
            "recorded_at": recorded,
            "schema_id": pa.array([schema_id] * n, pa.int32()),
            "value": records.column("value"),
        }
    )


def _told(texts: pa.Array | None, rows: int) -> pa.Array:
    """Return a header that may be absent: an empty one tells nothing, as a null one does."""
    if texts is None:
        return pa.nulls(rows, pa.string())
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _each(
    texts: pa.Array, read: Callable[[str | None], object], kind: pa.DataType | None = None
) -> pa.Array:
    """Return what each text says; the same text is read once."""
    encoded = texts.dictionary_encode(null_encoding="encode")
    said = pa.array([read(text) for text in encoded.dictionary.to_pylist()], kind or pa.string())
    return said.take(encoded.indices)


def _match(texts: pa.Array, pattern: str) -> bool:
    return _all(pc.match_substring_regex(texts, pattern))


def _all(found: pa.Array) -> bool:
    return bool(pc.all(found, min_count=0).as_py())
