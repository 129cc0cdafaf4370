"""Finding the next events that are wanted, by whichever index leads there soonest.

    alternatives -> [ each: shortest list of candidates -> those with the rest ] -> positions

1. Each thing asked for (a category, types, a tag, a stream, a prefix of streams) has a list of
   positions in an index. Of each list the next few are read.
2. The list that reaches furthest with these few leads: it is the rarest. What it names is checked
   for the rest that is asked for.
3. A list that was cut off says nothing beyond its last entry, so the result ends there. The work
   of one search is bounded by the entries that it may read, however long history is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from psycopg import rows, sql
from psycopg.types.json import Jsonb

from eventstore.filters import Wanted
from eventstore.names import behind_prefix
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import query
from eventstore.postgres.rows import EVENT_COLUMNS
from eventstore.sizes import PAGE_BYTES

PLAIN_COLUMNS = (
    "id::text, stream, category, version, position, type, schema_id, data_format, "
    "substr(data, 6), nullif(metadata::text, '{}'), "
    "CASE WHEN tags <> '{}' THEN array_to_json(tags)::text END, occurred_at, recorded_at"
)
"""What rendering many events needs, in the forms that cost it least: `PlainRow`."""
PlainRow = tuple[
    str, str, str, int, int, str, int, int, bytes, str | None, str | None, datetime, datetime, int
]
"""Id, stream, category, version, position, type, schema id, data format, data without its framing,
metadata and tags as JSON (None: empty), occurred at, recorded at, bytes of the page up to here."""

POSITION: Final = 4
"""Place of the position in a `PlainRow`."""

LOOK = 10_000
"""Positions that one search looks at for each thing asked for, at most."""
_NARROW_STREAMS = 1_000
_NARROW_EVENTS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Positions in order; nothing else is wanted up to and including `scanned_to`."""

    positions: list[int]
    scanned_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventPlace:
    """Where the next events that are wanted are: the SQL file that reads them, and its values.

    When it gives as many events as were asked for, the last one is how far was looked, else
    `scanned_to` is.
    """

    statement: tuple[str, Mapping[str, object]]
    scanned_to: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPage:
    """Rows in the asked order; everything up to and including `scanned_to` was looked at."""

    rows: list[PlainRow]
    scanned_to: int


@cache
def page_of(name: str, *, plain: bool = False, backward: bool = False) -> sql.Composed:
    """Return a statement that reads events so that it ends after `PAGE_BYTES`.

    Its last column says how many bytes there are up to and with each event. With `plain` it gives
    `PlainRow`s. Bytes of data that lie outside of the row are counted without being read; metadata
    are, only where they are not small.
    """
    return sql.SQL(_PAGE).format(
        query=query(name),
        columns=sql.SQL(PLAIN_COLUMNS if plain else EVENT_COLUMNS),
        order=sql.SQL("DESC" if backward else "ASC"),
        most=sql.Literal(PAGE_BYTES),
    )


_PAGE: Final = """
SELECT {columns}, through FROM (
    SELECT *, sum(size) OVER (ORDER BY position {order} ROWS UNBOUNDED PRECEDING) AS through FROM (
        SELECT *, coalesce(octet_length(data), 0)
            + CASE WHEN pg_column_size(metadata) > 64 THEN octet_length(metadata::text) ELSE 0 END
            + pg_column_size(tags) AS size
        FROM ({query}) AS event
    ) AS event
) AS event WHERE through - size < {most} ORDER BY position {order}
"""


async def page_rows(
    connection: Connection, statement: sql.Composed, values: Mapping[str, object]
) -> list[Any]:
    """Run a statement that was made by `page_of`."""
    async with connection.cursor(binary=True, row_factory=rows.tuple_row) as cursor:
        await cursor.execute(statement, values)
        return await cursor.fetchall()


async def head_of(connection: Connection) -> int:
    """Return the store's last position. What is read afterwards can only be more."""
    row = await (await connection.execute("SELECT position FROM es.counter")).fetchone()
    return int(row[0]) if row is not None else 0


async def locate(
    connection: Connection, wanted: Sequence[Wanted], *, after: int, head: int, limit: int
) -> EventPlace:
    """Find the next events behind `after`, at most `head` (without alternatives: all of them).

    Close to the head all that there is gets looked at, further back indexes are asked.
    """
    up_to = max(after, min(head, after + LOOK))
    bounds = {"after": after, "up_to": up_to, "limit": limit}
    if not wanted:
        return EventPlace(statement=("read_all", bounds), scanned_to=up_to)
    if up_to == head:
        values = bounds | {"wanted": Jsonb([asdict(each) for each in wanted])}
        return EventPlace(statement=("read_wanted", values), scanned_to=up_to)
    found = await search(connection, wanted, after=after, head=head, limit=limit)
    return EventPlace(
        statement=("read_positions", {"positions": found.positions}), scanned_to=found.scanned_to
    )


async def search(
    connection: Connection, wanted: Sequence[Wanted], *, after: int, head: int, limit: int
) -> Found:
    """Return up to `limit` positions in (after, head] that one of the alternatives wants."""
    if after >= head:
        return Found(positions=[], scanned_to=after)
    parts = [await _search_one(connection, each, after, head, limit) for each in wanted]
    scanned_to = min(part.scanned_to for part in parts)
    merged = sorted({at for part in parts for at in part.positions if at <= scanned_to})
    if len(merged) > limit:
        merged = merged[:limit]
        scanned_to = merged[-1]
    return Found(positions=merged, scanned_to=scanned_to)


async def _search_one(
    connection: Connection, wanted: Wanted, after: int, head: int, limit: int
) -> Found:
    lists = await _lists(connection, wanted)
    exact = len(lists) == 1 and not wanted.stream_prefix and wanted.types == wanted.bare_types
    look = limit if exact else max(limit, LOOK)
    best: Found | None = None
    for name, values in lists:
        bounds = {"after": after, "up_to": head, "limit": look}
        found = await _positions(connection, name, values | bounds)
        part = Found(positions=found, scanned_to=found[-1] if len(found) >= look else head)
        if best is None or part.scanned_to > best.scanned_to or len(found) < len(best.positions):
            best = part
    assert best is not None
    if exact or not best.positions:
        return best
    return await _with_the_rest(connection, wanted, best, limit)


async def _lists(connection: Connection, wanted: Wanted) -> list[tuple[str, dict[str, object]]]:
    """Return what leads to the events that are wanted: names of SQL files and their values."""
    lists: list[tuple[str, dict[str, object]]] = []
    lists += [("find_by_tag", {"tag": tag}) for tag in wanted.tags]
    if wanted.types:
        lists.append(("find_by_types", {"types": list(wanted.bare_types)}))
    if wanted.stream is not None:
        lists.append(("find_by_streams", {"streams": [wanted.stream]}))
    category = wanted.category
    if wanted.stream_prefix is not None:
        streams = await _narrow(connection, wanted.stream_prefix)
        if streams is not None:
            lists.append(("find_by_streams", {"streams": streams}))
        begins, dash, _ = wanted.stream_prefix.partition("-")
        category = begins if category is None and dash else category
    if category is not None:
        lists.append(("find_by_category", {"category": category}))
    if not lists:
        lists.append(("find_next", {}))
    return lists


async def _narrow(connection: Connection, prefix: str) -> list[str] | None:
    """Return the streams that begin so, or None when they are too many to be looked through."""
    values = {"prefix": prefix, "behind": behind_prefix(prefix), "limit": _NARROW_STREAMS + 1}
    cursor = await connection.execute(query("streams_by_prefix"), values)
    rows = await cursor.fetchall()
    if len(rows) > _NARROW_STREAMS or sum(version + 1 for _, version in rows) > _NARROW_EVENTS:
        return None
    return [stream for stream, _ in rows]


async def _with_the_rest(connection: Connection, wanted: Wanted, found: Found, limit: int) -> Found:
    kept = await _positions(
        connection,
        "keep_wanted",
        {
            "positions": found.positions,
            "category": wanted.category,
            "types": list(wanted.types),
            "tags": list(wanted.tags),
            "stream": wanted.stream,
            "stream_prefix": wanted.stream_prefix,
        },
    )
    if len(kept) > limit:
        return Found(positions=kept[:limit], scanned_to=kept[limit - 1])
    return Found(positions=kept, scanned_to=found.scanned_to)


async def _positions(connection: Connection, name: str, values: dict[str, object]) -> list[int]:
    async with connection.cursor(binary=True) as cursor:
        await cursor.execute(query(name), values)
        return [position for (position,) in await cursor.fetchall()]
