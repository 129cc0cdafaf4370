"""A category of the event store as the outlet of a projection's changes: each is one event.

    RowChange -> raised | changed | cleared, in the stream CATEGORY-KEY, with the row as its data

An event's id is made of the table, its version and the key. Events are appended first, then the
place behind them is kept: a crash in between appends the same ones again, which the store answers
as it did the first time. From the store webhooks, mail and groups take them, as all other events.

What no run of the live table did (its first rows, a swap, a rollback) is recorded as well, so that
who follows the events knows which rows there are, but marked as silent: deliverers send none of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID, uuid5

import orjson

from apps.cli.client import ServiceClient
from apps.pipeline.sink_transactions import SinkCursor, SinkTransactions
from apps.settings import Settings
from eventstore.metadata import SILENT
from eventstore.names import STREAM_MAX_CHARS
from kernel.positions import TopicId
from projections.serve.row_changes import RowChange
from projections.serve.table_steps import Changes
from projections.sql.sinks import EVENT_TYPES, EventSink
from schemas.json_codec import json_default

_IDS = UUID("8f5fd0a0-6d4c-5d43-9c4e-5b8e0a3f2c11")
_MOST_EVENTS, _MOST_BYTES = 100, 2**20
"""Of one request. Who repeats it after a crash has to make the same ones."""
_STORE = TopicId("events", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEvent:
    """One event to be appended."""

    stream: str
    event: Mapping[str, object]
    nbytes: int


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
        settings: Settings,
        transactions: SinkTransactions,
    ) -> None:
        # No topic has a colon in its name: places of both kinds lie beside each other.
        self.name = declared.target
        self.title = f"category {declared.category}"
        self._category = declared.category
        self._projection = projection
        self._service = ServiceClient(settings)
        self._transactions = transactions

    def found(self) -> TopicId:
        """Return the store. A category begins with its first event."""
        return _STORE

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
        if not changes.fresh:
            about[SILENT] = True
        base = f"{changes.behind.table_id}.{towards}"
        return [self._event(change, changes, base, about) for change in changes.rows]

    def _event(
        self, change: RowChange, changes: Changes, base: str, about: Mapping[str, object]
    ) -> SinkEvent:
        key = [_text(value) for value in change.key.values()]
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
        return SinkEvent(stream=self._stream(key), event=event, nbytes=len(data))

    def _stream(self, key: Sequence[str]) -> str:
        """Return the stream of a key. Values are quoted, so that no two keys share one."""
        stream = f"{self._category}-{','.join(quote(value, safe=':+@') for value in key)}"
        if len(stream) > STREAM_MAX_CHARS or stream.endswith("-"):
            digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
            return f"{self._category}-sha256:{digest}"
        return stream

    def send(self, records: Sequence[SinkEvent], cursor: SinkCursor) -> None:
        """Append events, and keep the place behind them."""
        for part in _parts(records):
            streams: dict[str, list[Mapping[str, object]]] = {}
            for record in part:
                streams.setdefault(record.stream, []).append(record.event)
            appends = [{"stream": name, "events": events} for name, events in streams.items()]
            self._service.post("/v1/append", {"appends": appends})
        self._transactions.send([], cursor)


def _parts(records: Sequence[SinkEvent]) -> Iterator[list[SinkEvent]]:
    part: list[SinkEvent] = []
    size = 0
    for record in records:
        if part and (len(part) >= _MOST_EVENTS or size + record.nbytes > _MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(record)
        size += record.nbytes
    if part:
        yield part


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=json_default, option=orjson.OPT_UTC_Z).decode().strip('"')
