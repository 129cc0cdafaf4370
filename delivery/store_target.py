"""The service of another store as the target of a replay of events.

    Moved -> one line of an import: id, type, data as JSON, tags, the time moved, metadata marked

Ids are those of the origin, so that a line that comes twice is there once. Events go in by
position: up to which one they are there is found by halves, asking for single events by their ids.
Schemas that the target does not have are registered there, as long as the newest one that it has
of a type is the origin's, too: a target whose types went on by themselves keeps its own.
Each event is marked with the selection, too: halves find the end of one selection alone, and what a
narrower one left there would be taken for the beginning of a wider one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson

from eventstore.metadata import SILENT
from eventstore.names import subject_of
from eventstore.service_client import ServiceClient
from kernel.errors import Conflict, ContractViolation, Incompatible, NotFound, PenstockError
from replay.elsewhere.event_schemas import EventSchemas
from replay.elsewhere.passage import AT_ONCE, Batching, Moved
from replay.elsewhere.selection import Identity, SelectedEvents
from schemas.json_codec import json_default
from schemas.records import RecordedEvent
from schemas.wire import HEADER_BYTES

REPLAYED = "penstock_replayed"
"""Metadata of a replayed event: the store and position that it comes from, its times there."""
_KEEPS_BYTES = "Replay into a topic, which keeps the bytes as they are: --to topic:NAME"
_OTHER_OPTIONS = "Give the options that it began with, or replay into another store."


class StoreTarget:
    """Appends events to the store behind a service. `schemas`: Avro texts of the origin by id."""

    def __init__(
        self,
        service: ServiceClient,
        events: SelectedEvents,
        schemas: Mapping[int, str],
        *,
        shift: timedelta,
        effects: bool = False,
    ) -> None:
        self._service = service
        self._events = events
        self._schemas = EventSchemas(schemas)
        self._texts = {orjson.dumps(json.loads(text)) for text in schemas.values()}
        self._terms: Mapping[str, object] = {
            "shifted_us": shift // timedelta(microseconds=1),
            "effects": effects,
            "selection": _digest(events.selection.told),
        }
        self._effects = effects
        self._settled: set[tuple[str, int]] = set()

    @property
    def batching(self) -> Batching:
        """Return what goes out together."""
        return AT_ONCE

    def reached(self) -> int:
        """Return the position up to which all of these events are there.

        Raises `Conflict` where the target has one of them from elsewhere, or from a replay of
        another selection or with other times or effects.
        """
        chosen = self._events.selection
        there, missing_behind = chosen.after, chosen.up_to
        while there < missing_behind:
            middle = (there + missing_behind) // 2
            event = self._events.first_behind(middle)
            if event is not None and event.position <= missing_behind and self._has(event):
                there = event.position
            else:
                missing_behind = middle
        return there

    def send(self, events: Sequence[Moved]) -> None:
        """Append events behind those that are there. Each line is on disk when it returns."""
        for moved in events:
            try:
                self._settle(moved.event)
            except (Conflict, ContractViolation, Incompatible) as error:
                raise _refused(error, moved.origin) from error
        # All of them before the first is sent: a refusal leaves no part of a request behind.
        lines = [self._line(each) for each in events]
        try:
            self._service.send_lines("/v1/import", iter(lines))
        except ContractViolation as error:
            raise _placed(error, events) from error
        except Conflict as error:
            raise Conflict(
                f"the target has an event with an id of this replay and other content: {error}",
                remedy=_OTHER_OPTIONS,
            ) from error

    def close(self) -> None:
        """Let go of the connection."""
        self._service.close()

    def _has(self, event: Identity) -> bool:
        try:
            found = self._service.get(f"/v1/events/{event.id}")
        except NotFound:
            return False
        mark = found["metadata"].get(REPLAYED)
        if not isinstance(mark, dict) or mark.get("store") != event.store_id:
            raise Conflict(
                f"the store at {self._service.url} has event {event.id} of its own: it is the one "
                "that is read, or a copy of it",
                remedy="Name the service of another store: --to store:http://HOST:PORT",
            )
        if {name: mark.get(name) for name in self._terms} != self._terms:
            raise Conflict(
                f"the store at {self._service.url} has event {event.id} from a replay with another "
                "selection, other times or effects",
                remedy=_OTHER_OPTIONS,
            )
        return True

    def _settle(self, event: RecordedEvent) -> None:
        """Make sure that the target knows a schema for an event."""
        subject = subject_of(event.category, event.type)
        if (subject, event.schema_id) in self._settled:
            return
        text = self._schemas.text(event)
        wanted = orjson.dumps(json.loads(text))
        known: list[bytes] = []
        with contextlib.suppress(NotFound):
            versions = self._service.get(f"/v1/schemas/{subject}")["versions"]
            known = [orjson.dumps(_schema_of(each)) for each in versions]
        if wanted not in known and (not known or known[-1] in self._texts):
            self._service.post("/v1/schemas", {"subject": subject, "schema": text})
        self._settled.add((subject, event.schema_id))

    def _line(self, moved: Moved) -> bytes:
        event, origin = moved.event, moved.origin
        mark: dict[str, object] = {
            "store": origin.store_id,
            "position": origin.position,
            "version": origin.version,
            "occurred_at": origin.occurred_at.isoformat(),
            "recorded_at": origin.recorded_at.isoformat(),
            **self._terms,
        }
        metadata = {name: each for name, each in event.metadata.items() if name != SILENT}
        metadata[REPLAYED] = mark
        if not self._effects or event.metadata.get(SILENT) is True:
            metadata[SILENT] = True
        line = {
            "stream": event.stream,
            "id": str(event.id),
            "type": event.type,
            "data": orjson.Fragment(self._data(origin)),
            "metadata": metadata,
            "tags": list(event.tags),
            "occurred_at": event.occurred_at.isoformat(),
        }
        return orjson.dumps(line) + b"\n"

    def _data(self, origin: RecordedEvent) -> bytes:
        """Return an event's data as JSON. Raises `Incompatible` where that says something else.

        JSON has no NaN, and its texts do not say which branch of a union they are.
        """
        codec, body = self._schemas.codec(origin), origin.data[HEADER_BYTES:]
        try:
            text = orjson.dumps(codec.decode(body), default=json_default, option=orjson.OPT_UTC_Z)
            same = codec.encode(orjson.loads(text)) == body
        except (ContractViolation, Incompatible) as error:
            raise Incompatible(
                f"the data of position {origin.position}, {origin.stream}, cannot go as JSON: "
                f"{error}",
                remedy=_KEEPS_BYTES,
            ) from error
        if not same:
            raise Incompatible(
                f"the data of position {origin.position}, {origin.stream}, would be others as "
                "JSON, which has no NaN and no bytes beside text",
                remedy=_KEEPS_BYTES,
            )
        return text


def _digest(told: Mapping[str, object]) -> str:
    """Say in few letters which selection it is: every event carries them."""
    return hashlib.sha256(orjson.dumps(told, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def _schema_of(version: Mapping[str, Any]) -> object:
    schema = version["schema"]
    return json.loads(schema) if isinstance(schema, str) else schema


def _placed(error: ContractViolation, events: Sequence[Moved]) -> PenstockError:
    """Name the event that the target refused, where it said which line it was."""
    line = error.fields.get("line")
    if not isinstance(line, int) or not 1 <= line <= len(events):
        return error
    return _refused(error, events[line - 1].origin)


def _refused(error: PenstockError, origin: RecordedEvent) -> PenstockError:
    return type(error)(
        f"the target refuses position {origin.position}, {origin.stream}: {error.message}",
        remedy=error.remedy,
        **error.fields,
    )
