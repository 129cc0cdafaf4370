"""Schemas of the events of a log that is read, and what reads their data by them."""

from __future__ import annotations

from collections.abc import Mapping

from kernel.errors import NotFound
from schemas.json_codec import JsonCodec
from schemas.records import RecordedEvent


class EventSchemas:
    """Looks up Avro texts by id. Each is read once."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts
        self._codecs: dict[int, JsonCodec] = {}

    def text(self, event: RecordedEvent) -> str:
        """Return the schema of an event's data. Raises `NotFound` where the lake lacks it."""
        text = self._texts.get(event.schema_id)
        if text is None:
            raise NotFound(
                f"the lake lacks the schema with id {event.schema_id}, which position "
                f"{event.position} needs",
                remedy="Add its id and text to log/_schemas, as the registry has them.",
            )
        return text

    def codec(self, event: RecordedEvent) -> JsonCodec:
        """Return what reads an event's data, behind the framing. Raises `NotFound`."""
        codec = self._codecs.get(event.schema_id)
        if codec is None:
            codec = self._codecs[event.schema_id] = JsonCodec(self.text(event))
        return codec
