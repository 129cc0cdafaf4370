"""Appending inside a transaction that is the caller's own: rows and events, both or neither.

`es.append` is the SQL of it, for callers in any language; this is the same for Python. It takes
the lock of the one writer and keeps it to the caller's commit, so order and positions are those
of every other append. That is also its price: nobody else appends from the call to the commit.
Call it last, then commit; the database ends a transaction that holds others up for two seconds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from eventstore.intake import Intake
from eventstore.names import category_of
from eventstore.postgres.connect import wrapped
from eventstore.postgres.rows import of_row
from eventstore.store import Appended, EncodedEvent, Expected, StreamAppended
from kernel.errors import (
    IdReused,
    InvalidRequest,
    Overloaded,
    PenstockError,
    StoreDiverged,
    StreamGone,
    Unavailable,
    VersionConflict,
)
from schemas.records import NewEvent

_REFUSALS: dict[str, type[PenstockError]] = {
    "ES001": VersionConflict,
    "ES002": IdReused,
    "ES003": StreamGone,
    "ES004": InvalidRequest,
    "ES005": StoreDiverged,
}


async def append(
    connection: psycopg.AsyncConnection[Any],
    intake: Intake,
    stream: str,
    events: Sequence[NewEvent],
    *,
    expected: Expected = "any",
) -> Appended:
    """Append to one stream; it happens when the caller commits.

    `connection` is in a transaction, READ COMMITTED, under a login with the role
    `penstock_appender`. Subscribers of a service learn of the events within a second.

    Raises what `EventStore.append` raises; each error leaves the transaction aborted. `Overloaded`:
    the lock was not free for two seconds. `Unavailable`: also when the transaction's snapshot is
    older than the last append (REPEATABLE READ), and has to be begun again.
    """
    encoded = await intake.encode(category_of(stream), events)
    return await append_encoded(connection, stream, encoded, expected=expected)


async def append_encoded(
    connection: psycopg.AsyncConnection[Any],
    stream: str,
    events: Sequence[EncodedEvent],
    *,
    expected: Expected = "any",
) -> Appended:
    """Append events whose data is Avro already; see `append`."""
    given = [given_event(event) for event in events]
    with wrapped("appending in a transaction"):
        try:
            cursor = await connection.execute(
                "SELECT first_version, last_version, first_position, last_position, repeated"
                " FROM es.append(%s, %s, %s)",
                (stream, str(expected), Jsonb(given)),
            )
            row = await cursor.fetchone()
        except psycopg.errors.LockNotAvailable as error:
            raise Overloaded("another append held the lock for two seconds") from error
        except psycopg.errors.SerializationFailure as error:
            raise Unavailable(
                "somebody appended after this transaction had begun",
                remedy="Repeat the transaction, or run it as READ COMMITTED.",
            ) from error
        except psycopg.DataError as error:
            raise InvalidRequest(f"PostgreSQL refused the events: {error}") from error
        except psycopg.Error as error:
            refusal = _refusal(error, stream, expected)
            if refusal is None:
                raise
            raise refusal from error
    assert row is not None
    *places, repeated = row
    return Appended(appends=(of_row(StreamAppended, [stream, *places]),), repeated=repeated)


def given_event(event: EncodedEvent) -> dict[str, object]:
    """Return an event as an element of `es.append`'s third argument."""
    given: dict[str, object] = {
        "id": str(event.id),
        "type": event.type,
        "data": base64.b64encode(event.data).decode(),
    }
    if event.metadata:
        given["metadata"] = event.metadata
    if event.tags:
        given["tags"] = event.tags
    if event.occurred_at is not None:
        given["occurred_at"] = event.occurred_at.isoformat()
    return given


def _refusal(error: psycopg.Error, stream: str, expected: Expected) -> PenstockError | None:
    kind = _REFUSALS.get(error.sqlstate or "")
    if kind is None:
        return None
    fields = json.loads(error.diag.message_detail or "{}")
    if kind is VersionConflict:
        fields |= {"stream": stream, "expected": expected}
    if kind is StreamGone:
        fields["stream"] = stream
    return kind(error.diag.message_primary or str(error), **fields)
