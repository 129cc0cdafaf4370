"""What of a store is not in its events' own rows, and follows from them: what streams show.

    events of `…$metadata` streams, ascending -> PolicyFold -> StreamPolicy by stream

Every change of a policy is an event that has the whole policy, so that the last one tells it. A
stream that was deleted is so only while nothing was appended since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eventstore.lifecycle import METADATA_SUFFIX, StreamPolicy
from kernel.errors import Incompatible
from schemas.json_codec import JsonCodec
from schemas.wire import HEADER_BYTES

_DELETED, _TOMBSTONED = "stream_deleted", "stream_tombstoned"


class PolicyFold:
    """Folds the events that record the lives of streams. They come by ascending position."""

    def __init__(self, schemas: Mapping[int, str]) -> None:
        self._schemas = schemas
        self._codecs: dict[int, JsonCodec] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._deleted: dict[str, int] = {}
        self._tombstoned: set[str] = set()

    def add(self, stream: str, type_: str, schema_id: int, data: bytes) -> None:
        """Take one event of a metadata stream. Raises `Incompatible` without its schema."""
        codec = self._codecs.get(schema_id)
        if codec is None:
            if schema_id not in self._schemas:
                raise Incompatible(f"the schema with id {schema_id} is missing, which events need")
            codec = self._codecs[schema_id] = JsonCodec(self._schemas[schema_id])
        told = codec.decode(data[HEADER_BYTES:])
        name = stream.removesuffix(METADATA_SUFFIX)
        self._last[name] = told
        if type_ == _DELETED:
            self._deleted[name] = int(told["version"])
        elif type_ == _TOMBSTONED:
            self._tombstoned.add(name)

    @property
    def streams(self) -> list[str]:
        """The streams that have a policy."""
        return sorted(self._last)

    def policy(self, stream: str, version: int) -> StreamPolicy:
        """Return the policy of a stream whose last event has this version.

        All events are where they are read from: nothing of the stream is in an archive.
        """
        told = self._last.get(stream)
        if told is None:
            return StreamPolicy()
        tombstoned = stream in self._tombstoned
        return StreamPolicy(
            deleted=not tombstoned and self._deleted.get(stream) == version,
            tombstoned=tombstoned,
            truncate_before=int(told["truncate_before"]),
            max_age_s=told["max_age_s"],
            max_count=told["max_count"],
        )
