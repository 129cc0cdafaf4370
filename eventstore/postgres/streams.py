"""How a stream stands, and from which version on it is shown."""

from __future__ import annotations

from eventstore.lifecycle import StreamPolicy, StreamStanding, first_shown, metadata_stream
from eventstore.names import unknown_stream
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import query
from eventstore.postgres.rows import of_row
from kernel.positions import Version


async def standing_of(connection: Connection, stream: str) -> StreamStanding:
    """Return a stream's last version and policy. Raises `NotFound`."""
    values = {"stream": stream, "metadata": metadata_stream(stream)}
    row = await (await connection.execute(query("standing"), values)).fetchone()
    if row is None:
        raise unknown_stream(stream)
    version, *policy, metadata_version = row
    return StreamStanding(
        stream=stream,
        version=Version(version),
        policy=of_row(StreamPolicy, policy),
        metadata_version=None if metadata_version is None else Version(metadata_version),
    )


async def shown_from(connection: Connection, standing: StreamStanding) -> int:
    """Return the first version that a stream shows now, by the database's clock."""
    policy, version = standing.policy, standing.version
    first = first_shown(policy, version)
    if policy.max_age_s is None or first > version:
        return first
    values = {
        "stream": standing.stream,
        "low": first,
        "high": version + 1,
        "max_age_s": policy.max_age_s,
    }
    row = await (await connection.execute(query("first_young"), values)).fetchone()
    return first if row is None else int(row[0])
