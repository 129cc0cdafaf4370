"""Events as lines of PostgreSQL's COPY, made column by column: no event becomes a Python object."""

from __future__ import annotations

import duckdb
import pyarrow as pa

_NAIVE = pa.timestamp("us")


def _escaped(column: str) -> str:
    text = f"replace({column}, '\\', '\\\\')"
    for character, letter in ((9, "t"), (10, "n"), (13, "r")):
        text = f"replace({text}, chr({character}), '\\{letter}')"
    return text


_TAG = """'"' || replace(replace(tag, '\\', '\\\\'), '"', '\\"') || '"'"""
_TAGS = f"'{{' || array_to_string(list_transform(tags, lambda tag: {_TAG}), ',') || '}}'"
_COLUMNS = (
    *("position", "store_id", "event_id", _escaped("stream"), "version", "category", "type"),
    *("schema_id", "data_format", "'\\\\x' || hex(data)"),
    *(f"coalesce({_escaped(name)}, '\\N')" for name in ("subject", "key_id")),
    *(_escaped("metadata"), _escaped(_TAGS)),
    *(f"{name} || '+00'" for name in ("occurred_at", "recorded_at")),
)
_LINE = " || chr(9) || ".join(f"({column})::VARCHAR" for column in _COLUMNS)
_SQL = f"SELECT {_LINE} || chr(10) AS line FROM events"


class CopyLines:
    """Makes lines as `eventstore.postgres.rows.COPY_EVENTS` takes them."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(config={"python_enable_replacements": "false"})

    def of(self, events: pa.Table) -> list[memoryview]:
        """Return the lines of events in their order, many in one buffer."""
        self._connection.register("events", _naive(events))
        try:
            lines = self._connection.sql(_SQL).to_arrow_table()["line"]
        finally:
            self._connection.unregister("events")
        return [_bytes(chunk) for chunk in lines.chunks if len(chunk)]

    def close(self) -> None:
        """Let go of the engine."""
        self._connection.close()


def _naive(events: pa.Table) -> pa.Table:
    """Take the zone from times, which are UTC: text of them then needs no zone of a session."""
    for name in ("occurred_at", "recorded_at"):
        place = events.schema.get_field_index(name)
        events = events.set_column(place, name, events[name].cast(_NAIVE))
    return events


def _bytes(lines: pa.Array) -> memoryview:
    """Return the texts of an array, which lie one behind the other."""
    lines = lines.cast(pa.large_string())
    offsets = memoryview(lines.buffers()[1]).cast("q")
    return memoryview(lines.buffers()[2])[
        offsets[lines.offset] : offsets[lines.offset + len(lines)]
    ]
