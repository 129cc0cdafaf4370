"""A category of the event store as the outlet of a projection's changes: each is one event.

    RowChange -> raised | changed | cleared, in the stream CATEGORY-KEY, with the row as its data

An event's id is made of the table, its version and the key. Events are appended first, then the
place behind them is kept: a crash in between appends the same ones again, which the store answers
as it did the first time. From the store webhooks, mail and groups take them, as all other events.

A place is one of a store, by its id: another store has nothing, and gets all rows.

What no run of the live table did (its first rows, a swap, a rollback) is recorded as well, so that
who follows the events knows which rows there are, but marked as silent: deliverers send none of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote
from uuid import UUID, uuid5

import orjson

from eventstore.metadata import SILENT
from eventstore.names import STREAM_MAX_CHARS
from eventstore.service_client import ServiceClient
from kernel.errors import Conflict
from kernel.positions import TopicId
from projections.serve.row_changes import RowChange
from projections.serve.table_steps import Changes
from projections.sinks.sink_transactions import SinkCursor, SinkTransactions
from projections.sql.words.sinks import EVENT_TYPES, EventSink
from schemas.json_codec import json_default

_IDS = UUID("8f5fd0a0-6d4c-5d43-9c4e-5b8e0a3f2c11")
_MOST_EVENTS, _MOST_BYTES = 100, 2**20
"""Of one request, where the service takes as much."""
_AROUND_BYTES = 64
"""What stands around one event in a request, at most."""
_NULL, _HASHED = "null", "sha256:"
"""What the stream of a key says in place of its value: no value is quoted like them."""
_UNNAMED = "events"
"""In place of a store's id, in places that were kept before it was looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEvent:
    """One event to be appended."""

    stream: str
    event: bytes
    """As it is sent: JSON."""

    @property
    def nbytes(self) -> int:
        """How much of a request it takes."""
        return len(self.stream.encode()) + len(self.event) + _AROUND_BYTES


class EventOutlet:
    """An outlet that appends events of one category through the service."""

    another = "Declare another category as the sink, which gets all rows"
    anew = f"{another}."
    repeats = True

    def __init__(
        self,
        *,
        declared: EventSink,
        projection: str,
        service: ServiceClient,
        most_events: int,
        most_bytes: int,
        transactions: SinkTransactions,
    ) -> None:
        """`most_events` and `most_bytes` are what the service takes in one request."""
        # No topic has a colon in its name: places of both kinds lie beside each other.
        self.name = declared.target
        self.title = f"category {declared.category}"
        self._category = declared.category
        self._projection = projection
        self._most_events = min(_MOST_EVENTS, most_events)
        self._most_bytes = min(_MOST_BYTES, most_bytes)
        self._service = service
        self._transactions = transactions
        self._store = ""

    def found(self) -> TopicId:
        """Return the store. A category begins with its first event."""
        self._store = str(self._service.get("/v1/store")["store"])
        return TopicId(self._store, 1)

    def name_store(self) -> None:
        """Take a place that names no store for one of the store that there is."""
        kept = self._transactions.cursors.get((self._projection, self.name))
        if kept is not None and kept.topic_id == _UNNAMED:
            self._transactions.send([], replace(kept, topic_id=self.found().id))

    def check(self, found: TopicId, had: int | None) -> None:
        """Do nothing: events have no partitions."""

    def records(self, changes: Changes) -> list[SinkEvent]:
        """Return the events of some changes, in their order."""
        towards = changes.behind.towards or changes.behind.version
        about: dict[str, object] = {
            "projection": self._projection,
            "table_version": towards,
            "epoch": changes.epoch,
            "generation": changes.generation,
        }
        base = f"{changes.behind.table_id}.{towards}"
        if not changes.fresh:
            about[SILENT] = True
            # A restored store may have events of this version: as they were when it got them.
            base = f"{base}.{self._store}"
        return [self._event(change, changes, base, about) for change in changes.rows]

    def _event(
        self, change: RowChange, changes: Changes, base: str, about: Mapping[str, object]
    ) -> SinkEvent:
        key = [None if value is None else _text(value) for value in change.key.values()]
        row = change.new if change.new is not None else change.old
        data = orjson.dumps(row, default=json_default, option=orjson.OPT_UTC_Z)
        event: dict[str, object] = {
            "id": str(uuid5(_IDS, json.dumps([self.name, base, change.operation, *key]))),
            "type": EVENT_TYPES[change.operation],
            "data": orjson.Fragment(data),
            "metadata": about,
        }
        if changes.at is not None:
            event["occurred_at"] = changes.at.isoformat()
        return SinkEvent(stream=self._stream(key), event=orjson.dumps(event))

    def _stream(self, key: Sequence[str | None]) -> str:
        """Return the stream of a key. Values are quoted, so that no two keys share one."""
        name = ",".join(_NULL if value is None else _quoted(value) for value in key)
        stream = f"{self._category}-{name}"
        if len(stream) > STREAM_MAX_CHARS or stream.endswith("-") or name.startswith(_HASHED):
            digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
            return f"{self._category}-{_HASHED}{digest}"
        return stream

    def send(self, records: Sequence[SinkEvent], cursor: SinkCursor) -> None:
        """Append events, and keep the place behind them."""
        for part in self._parts(records):
            self._append(part)
        self._transactions.send([], cursor)

    def _append(self, part: Sequence[SinkEvent]) -> None:
        """Append events that may be there already, all of them or, of requests that were cut
        otherwise before a crash, a part: halves of it are there or are not.
        """
        streams: dict[str, list[orjson.Fragment]] = {}
        for record in part:
            streams.setdefault(record.stream, []).append(orjson.Fragment(record.event))
        appends = [{"stream": name, "events": events} for name, events in streams.items()]
        try:
            self._service.post("/v1/append", {"appends": appends})
        except Conflict as error:
            if error.fields.get("problem") != "id-reused" or len(part) == 1:
                raise
            middle = len(part) // 2
            self._append(part[:middle])
            self._append(part[middle:])

    def _parts(self, records: Sequence[SinkEvent]) -> Iterator[list[SinkEvent]]:
        """Yield what one request each may hold."""
        part: list[SinkEvent] = []
        size = 0
        for record in records:
            full = len(part) >= self._most_events or size + record.nbytes > self._most_bytes
            if part and full:
                yield part
                part, size = [], 0
            part.append(record)
            size += record.nbytes
        if part:
            yield part


def _quoted(text: str) -> str:
    """Quote a value as in a URL; the text that NULL is written as has its first letter quoted."""
    return f"%{ord(text[0]):02X}{text[1:]}" if text == _NULL else quote(text, safe=":+@")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=json_default, option=orjson.OPT_UTC_Z).decode().strip('"')
