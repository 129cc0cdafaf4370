"""The codecs of all schemas that are known here, by schema id."""

from __future__ import annotations

from typing import Any

from eventstore.store import EncodedEvent
from kernel.errors import Incompatible, NotFound
from schemas.json_codec import JsonCodec
from schemas.records import FORMAT_AVRO, RecordedEvent
from schemas.wire import HEADER_BYTES


class Codecs:
    """Builds each codec on first use and keeps it."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._codecs: dict[int, JsonCodec] = {}

    def learn(self, schema_id: int, schema_json: str) -> None:
        """Remember a schema's text; under its id it never changes."""
        self._texts.setdefault(schema_id, schema_json)

    def known(self, schema_id: int) -> bool:
        """Return whether a schema was learned."""
        return schema_id in self._texts

    def codec(self, schema_id: int) -> JsonCodec:
        """Return the codec of a schema. Raises `NotFound` when it was never learned."""
        codec = self._codecs.get(schema_id)
        if codec is None:
            if schema_id not in self._texts:
                raise NotFound(f"schema {schema_id} is not known here", schema_id=schema_id)
            codec = self._codecs[schema_id] = JsonCodec(self._texts[schema_id])
        return codec

    def decode(self, event: RecordedEvent | EncodedEvent) -> dict[str, Any]:
        """Return an event's data as JSON values.

        Raises `Incompatible` for a data format that is not known, `NotFound` like `codec`.
        """
        return self.codec(event.schema_id).decode(self.body(event))

    @staticmethod
    def body(event: RecordedEvent | EncodedEvent) -> bytes:
        """Return an event's Avro without its framing. Raises `Incompatible` for other formats."""
        if event.data_format != FORMAT_AVRO:
            raise Incompatible(f"event {event.id} has the unknown data format {event.data_format}")
        return event.data[HEADER_BYTES:]

    def same_data(self, first: EncodedEvent, second: EncodedEvent) -> bool:
        """Return whether two events say the same, perhaps in different versions of a schema.

        A field that one version lacks equals null in the other.
        """
        try:
            data, other = self.decode(first), self.decode(second)
        except NotFound:
            return False
        return bool(_without_nulls(data) == _without_nulls(other))


def _without_nulls(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nulls(item) for key, item in value.items() if item is not None}
        case list():
            return [_without_nulls(item) for item in value]
        case _:
            return value
