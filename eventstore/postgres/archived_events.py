"""What a read of the database lacks, because it is in the archive.

Positions and versions have no gaps. So a page that lacks nothing is known by its ends, and reading
it costs nothing more; only where something is missing `es.archived` is asked. Events move there in
one transaction: who looks at `es.events` first finds each of them in one of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, TypeVar

from eventstore.archive import Archived
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import query
from eventstore.postgres.reading import PlainRow
from eventstore.sizes import PAGE_BYTES
from kernel.positions import Position
from schemas.records import RecordedEvent
from schemas.wire import HEADER_BYTES

# In the columns of events and in plain rows alike.
_VERSION: Final = 3
_DATA: Final = 8
_THROUGH: Final = -1

Item = TypeVar("Item")


async def lacking(
    connection: Connection,
    name: str,
    values: Mapping[str, Any],
    rows: Sequence[Sequence[Any]],
    *,
    position: int,
) -> list[Archived]:
    """Return which archived events belong between the rows that `<name>.sql` gave for `values`.

    `rows` may have some of them too. `position` is the place of the position in a row.
    """
    match name:
        case "read_all":
            asked = min(values["limit"], values["up_to"] - values["after"])
            whole = asked <= 0 or (
                len(rows) == asked and rows[-1][position] == values["after"] + asked
            )
            if whole:
                return []
            found = await _archived(connection, "archived_after", values)
            return _first(found, rows, values["limit"], position=position)
        case "read_stream_forward" | "read_stream_backward":
            backward = name.endswith("backward")
            if _is_whole(values, rows, backward=backward):
                return []
            of_stream = name.replace("read_stream", "archived_of_stream")
            found = await _archived(connection, of_stream, values)
            return _first(found, rows, values["limit"], position=position, backward=backward)
        case "read_wanted":
            bare = [row[position] for row in rows if row[_DATA] is None]
            return await _at(connection, bare)
        case "read_event":
            return [] if rows else await _archived(connection, "archived_event", values)
        case _:
            here = {row[position] for row in rows}
            return await _at(connection, [at for at in values["positions"] if at not in here])


def merged(
    rows: Iterable[tuple[Any, ...]],
    make: Callable[[tuple[Any, ...]], Item],
    archived: Iterable[tuple[int, Item]],
    *,
    position: int,
    backward: bool = False,
) -> list[Item]:
    """Return rows that have a body, made into items, and archived ones, by position."""
    items = {row[position]: make(row) for row in rows if row[_DATA] is not None}
    items.update(archived)
    return [items[at] for at in sorted(items, reverse=backward)]


def within(
    rows: Sequence[Sequence[Any]],
    archived: Sequence[Archived],
    *,
    position: int,
    backward: bool = False,
) -> int | None:
    """Return the position that a page ends with for its bytes, None when it is not too large.

    `rows` end there already where they alone are too large; the archived events do not.
    """
    last: int | None = None
    if rows and rows[-1][_THROUGH] >= PAGE_BYTES:
        last = rows[-1][position]
    if not archived:
        return last
    steps = pairwise([0, *(row[_THROUGH] for row in rows)])
    sizes = {row[position]: b - a for row, (a, b) in zip(rows, steps, strict=True)}
    sizes |= {each.position: each.bytes for each in archived}
    total = 0
    at: int
    for at in sorted(sizes, reverse=backward):
        total += sizes[at]
        if total >= PAGE_BYTES or at == last:
            return at
    return None


def plain_of(event: RecordedEvent) -> PlainRow:
    """Return an event as PostgreSQL would have given it, texts of JSON included."""
    return (
        str(event.id),
        event.stream,
        event.category,
        event.version,
        event.position,
        event.type,
        event.schema_id,
        event.data_format,
        event.data[HEADER_BYTES:],
        json.dumps(event.metadata, ensure_ascii=False) if event.metadata else None,
        _tags(event.tags) if event.tags else None,
        event.occurred_at,
        event.recorded_at,
        0,
    )


def _first(
    archived: Sequence[Archived],
    rows: Sequence[Sequence[Any]],
    limit: int,
    *,
    position: int,
    backward: bool = False,
) -> list[Archived]:
    """Return those that are among the first `limit` of both: no others need to be fetched."""
    both = {row[position] for row in rows} | {each.position for each in archived}
    first = set(sorted(both, reverse=backward)[:limit])
    return [each for each in archived if each.position in first]


def _tags(tags: Sequence[str]) -> str:
    return json.dumps(tags, ensure_ascii=False, separators=(",", ":"))


def _is_whole(values: Mapping[str, Any], rows: Sequence[Sequence[Any]], *, backward: bool) -> bool:
    """Say whether part of a stream that is at `values["version"]`, or further, has no gaps."""
    start, step = values["from_version"], 1
    ends = [rows[0][_VERSION], rows[-1][_VERSION]] if rows else []
    last = max([values["version"], *ends])
    if backward:
        start, step = min(start, last), -1
        asked = min(values["limit"], start - values["floor"] + 1)
    else:
        asked = min(values["limit"], last - start + 1)
    if asked <= 0:
        return True
    return bool(
        len(rows) == asked
        and rows[0][_VERSION] == start
        and rows[-1][_VERSION] == start + step * (asked - 1)
    )


async def _at(connection: Connection, positions: Sequence[int]) -> list[Archived]:
    if not positions:
        return []
    return await _archived(connection, "archived_at", {"positions": list(positions)})


async def _archived(connection: Connection, name: str, values: Mapping[str, Any]) -> list[Archived]:
    cursor = await connection.execute(query(name), values)
    return [
        Archived(position=Position(position), store_id=str(store_id), bytes=size)
        for position, store_id, size in await cursor.fetchall()
    ]
