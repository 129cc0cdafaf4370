"""Events of a group whose ids are in the archive: repetitions, or ids that are used for others.

A checksum beside the id tells nearly always. Where it differs, the content may still say the same
in another version of its schema: then the whole event is fetched, while nobody holds the lock.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any
from uuid import UUID

import orjson

from eventstore.archive import Archive, Archived, fetched
from eventstore.decision import Placed
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import results
from eventstore.store import AppendRequest, EncodedEvent
from kernel.errors import PenstockError, Unavailable
from kernel.positions import Position

Recalled = Mapping[UUID, EncodedEvent | PenstockError]
"""What the archive gave for an id, or why it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Archived events of a group by id. `unclear`: those whose content has to be fetched."""

    known: Mapping[UUID, Placed]
    unclear: Mapping[UUID, Archived]


async def archived_of(
    connection: Connection, rows: Sequence[Sequence[Any]], requests: Sequence[AppendRequest]
) -> Repeats:
    """Make places of what `begin_group.sql` found in the archive; compares their contents."""
    if not rows:
        return Repeats(known={}, unclear={})
    ids = {row[1] for row in rows}
    given: dict[UUID, EncodedEvent] = {}
    for request in requests:
        for append in request.appends:
            for event in append.events:
                if event.id in ids:
                    given.setdefault(event.id, event)
    events = orjson.dumps([_document(event) for event in given.values()]).decode()
    (found,) = await results(connection, "contents_of", events=events)
    contents = dict(found)
    known = {row[1]: _placed(row, given[row[1]]) for row in rows}
    unclear = {
        row[1]: Archived(store_id=str(row[8]), position=Position(row[0]))
        for row in rows
        if contents[row[1]] != row[9]
    }
    return Repeats(known=known, unclear=unclear)


async def recall(archive: Archive, unclear: Mapping[UUID, Archived]) -> Recalled:
    """Fetch events whose content is unclear. Never raises: one lost event fails one request."""
    recalled: dict[UUID, EncodedEvent | PenstockError] = {}
    for id_, place in unclear.items():
        try:
            (event,) = await fetched(archive, [place])
        except PenstockError as error:
            recalled[id_] = error
            continue
        names = (each.name for each in fields(EncodedEvent))
        recalled[id_] = EncodedEvent(**{name: getattr(event, name) for name in names})
    return recalled


def cleared(
    repeats: Repeats, recalled: Recalled
) -> tuple[dict[UUID, Placed], dict[UUID, PenstockError]]:
    """Return the places with what was recalled, and what stays unclear, with the reason."""
    known = dict(repeats.known)
    unclear: dict[UUID, PenstockError] = {}
    for id_ in repeats.unclear:
        match recalled.get(id_):
            case EncodedEvent() as event:
                known[id_] = replace(known[id_], event=event)
            case None:
                unclear[id_] = Unavailable(f"event {id_} went to the archive just now")
            case error:
                unclear[id_] = error
    return known, unclear


def _document(event: EncodedEvent) -> dict[str, object]:
    return {
        "id": str(event.id),
        "type": event.type,
        "data": base64.b64encode(event.data).decode(),
        "tags": list(event.tags),
        "metadata": event.metadata,
    }


def _placed(row: Sequence[Any], event: EncodedEvent) -> Placed:
    position, _, stream, version, category, _, occurred_at, recorded_at, *_ = row
    return Placed(
        event=event,
        stream=stream,
        category=category,
        version=version,
        position=position,
        occurred_at=occurred_at,
        recorded_at=recorded_at,
    )
