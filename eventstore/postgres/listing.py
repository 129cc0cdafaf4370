"""Lists of streams and categories, each read from its index."""

from __future__ import annotations

from eventstore.listing import COUNTED_STREAMS, CategorySummary, StreamRange, StreamSummary
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import query
from eventstore.postgres.rows import of_row


async def streams_of(
    connection: Connection, range_: StreamRange, limit: int
) -> tuple[StreamSummary, ...]:
    """Return the first streams of a range, by name."""
    values = {
        "prefix": range_.prefix,
        "after": range_.after,
        "behind": range_.behind,
        "limit": limit,
    }
    cursor = await connection.execute(query("list_streams"), values)
    return tuple([of_row(StreamSummary, row) for row in await cursor.fetchall()])


async def categories_of(connection: Connection) -> tuple[CategorySummary, ...]:
    """Return all categories, by name."""
    values = {"limit": COUNTED_STREAMS + 1}
    cursor = await connection.execute(query("list_categories"), values)
    return tuple(
        CategorySummary(
            category=category,
            streams=min(streams, COUNTED_STREAMS),
            more=streams > COUNTED_STREAMS,
            position=position,
            recorded_at=recorded_at,
        )
        for category, streams, position, recorded_at in await cursor.fetchall()
    )
