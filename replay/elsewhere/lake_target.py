"""A Delta table of another lake as the target of a replay of events.

    Moved -> a row of PLACE/events: what the event says, its times moved, and those that it had

Rows and the position behind them are one commit, guarded by it. The table's description says which
replay it is, so that it has one, once: the same command goes on with it, another one is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import orjson
import pyarrow as pa
from deltalake.exceptions import DeltaError

from kernel.errors import Conflict, Unavailable
from kernel.positions import Epoch
from lake.guarded_commits import mark_of
from lake.layout import Lake
from lake.table_columns import UTC_MICROS
from lake.table_settings import make_table
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard
from replay.elsewhere.event_schemas import EventSchemas
from replay.elsewhere.passage import Batching, Moved
from schemas.json_codec import json_default
from schemas.wire import HEADER_BYTES

NAME = "events"
APP = "penstock/replayed-events"
BATCHING = Batching(events=20_000, bytes=32 * 2**20, wait_s=1.0)
"""Each commit is a file, which readers open."""
_MADE = "Made by penstock replay events: "
_SHAPE = pa.schema(
    [
        ("store_id", pa.string()),
        ("position", pa.int64()),
        ("event_id", pa.string()),
        ("stream", pa.string()),
        ("version", pa.int64()),
        ("category", pa.string()),
        ("type", pa.string()),
        ("data", pa.string()),
        ("metadata", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("occurred_at", UTC_MICROS),
        ("recorded_at", UTC_MICROS),
        ("origin_occurred_at", UTC_MICROS),
        ("origin_recorded_at", UTC_MICROS),
        ("schema_id", pa.int64()),
        ("bytes", pa.binary()),
    ]
)


class LakeTarget:
    """Appends events to the table `events` of a lake. `told`: what makes a replay the same one.

    `schemas`: the Avro texts of the log that is read, by id.
    """

    def __init__(self, lake: Lake, told: Mapping[str, object], schemas: Mapping[int, str]) -> None:
        self._path = lake.path(NAME)
        self._told = _MADE + json.dumps(told, sort_keys=True)
        self._schemas = EventSchemas(schemas)
        self._tables = Tables()
        self._writer = ArrowWriter(self._tables)

    @property
    def batching(self) -> Batching:
        """Return what is one commit."""
        return BATCHING

    def reached(self) -> int:
        """Return the position up to which this replay is there. Raises `Conflict`."""
        try:
            table = self._tables.open(self._path)
            if table is None:
                table = make_table(self._path, _SHAPE, description=self._told)
        except (DeltaError, OSError) as error:
            raise Unavailable(
                f"{self._path} cannot be written: {error}",
                remedy="Look whether the place is there.",
            ) from error
        found = table.metadata().description or "another table"
        if found != self._told:
            raise Conflict(
                f"{self._path} has something else: {found}",
                remedy="Give the options that it began with, or name another place, as --to "
                "lake:PLACE.",
            )
        return mark_of(table, APP) or 0

    def send(self, events: Sequence[Moved]) -> None:
        """Append events, and the position behind them, all or nothing."""
        rows = pa.Table.from_pylist([self._row(each) for each in events], _SHAPE)
        self._writer.append(self._path, rows, Guard(APP, Epoch(events[-1].origin.position)))

    def close(self) -> None:
        """Give up what is open: nothing is."""

    def _row(self, moved: Moved) -> dict[str, object]:
        event, origin = moved.event, moved.origin
        data = self._schemas.codec(origin).decode(origin.data[HEADER_BYTES:])
        text = orjson.dumps(data, default=json_default, option=orjson.OPT_UTC_Z)
        return {
            "store_id": origin.store_id,
            "position": origin.position,
            "event_id": str(event.id),
            "stream": event.stream,
            "version": event.version,
            "category": event.category,
            "type": event.type,
            "data": text.decode(),
            "metadata": orjson.dumps(event.metadata).decode(),
            "tags": list(event.tags),
            "occurred_at": event.occurred_at,
            "recorded_at": event.recorded_at,
            "origin_occurred_at": origin.occurred_at,
            "origin_recorded_at": origin.recorded_at,
            "schema_id": origin.schema_id,
            "bytes": origin.data,
        }
