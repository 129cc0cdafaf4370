"""A whole group in one call of a prepared statement: `es.append_group`.

    Placed … -> arrays, one per column -> es.append_group -> committed

The writer knows the head of the store and those of the group's streams, for nobody else appends.
The call carries that belief, and fails when it is wrong; an event id that is in the store already
fails at its index, and a condition that is not met at its own search. Then nothing is kept. This
costs one round trip instead of five, PostgreSQL neither parses nor plans anything, and a large
group goes as quickly as by COPY.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
import psycopg
from psycopg import generators, pq
from psycopg.abc import PQGen

from eventstore.decision import Placed
from eventstore.postgres.connect import Connection
from eventstore.postgres.queries import query
from eventstore.store import EncodedEvent
from kernel.positions import Position

NAME: Final = b"append_group"
MOVED: Final = "ES010"
MAX_EVENTS: Final = 2_000
"""More in one call would hold the event loop for longer than other requests should wait."""

_UUID, _TEXT, _BYTEA, _JSONB = 2950, 25, 17, 3802
_ARRAY = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_UUID_ITEM = _LENGTH.pack(16)
_NULL_ITEM = _LENGTH.pack(-1)
_JSONB_VERSION = b"\x01"
Value = bytes | None
_BINARY: Final = frozenset({3, 4, 6, 7, 10, 11, 12, 13, 14})
_FORMATS: Final = [pq.Format.BINARY if place in _BINARY else pq.Format.TEXT for place in range(17)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What a writer takes for true: the number of its lease, the head of the store, whose it is."""

    lease: int
    before: Position
    store_id: str


async def prepare(connection: Connection) -> None:
    """Prepare the statement on a new connection."""
    await connection.execute(query("prepare_append_group"))


async def commit(connection: Connection, values: Sequence[Value]) -> None:
    """Make the call; return once it is committed.

    Raises the driver's errors (see `refused`); nothing was kept then, unless the
    connection broke.
    """
    async with connection.lock:
        results = await connection.wait(_exchange(connection.pgconn, values))
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise psycopg.errors.error_from_result(result, encoding="utf-8")


def check_alive(connection: Connection) -> None:
    """Raise the driver's error when the server has hung up: nothing sent now would arrive."""
    watch = select.poll()
    watch.register(connection.pgconn.socket, select.POLLRDHUP)
    if watch.poll(0):
        raise psycopg.OperationalError("the server has closed the connection")


def refused(error: psycopg.Error) -> bool:
    """Return whether PostgreSQL refused what the call says, for the data or for the belief."""
    return error.sqlstate == MOVED or isinstance(error, psycopg.DataError | psycopg.IntegrityError)


def values_of(placed: Sequence[Placed], belief: Belief, walks: Value = None) -> list[Value]:
    """Return the values of the call for events that were placed behind the head `belief.before`.

    `walks` are those of the group's conditions (`Probes.json`), if it has any.
    """
    events = [place.event for place in placed]
    return [
        b"%d" % belief.lease,
        b"%d" % belief.before,
        belief.store_id.encode(),
        _array(_UUID, [_UUID_ITEM + event.id.bytes for event in events]),
        _texts(place.stream for place in placed),
        _numbers(place.version for place in placed),
        _texts(place.category for place in placed),
        _texts(event.type for event in events),
        _numbers(event.schema_id for event in events),
        _numbers(event.data_format for event in events),
        _array(_BYTEA, [_LENGTH.pack(len(event.data)) + event.data for event in events]),
        _optional(_TEXT, [event.subject for event in events], str.encode),
        _optional(_TEXT, [event.key_id for event in events], str.encode),
        _optional(_JSONB, [event.metadata or None for event in events], _jsonb),
        _optional(_TEXT, [event.tags or None for event in events], _tags),
        _times(events),
        walks,
    ]


def _exchange(pgconn: pq.abc.PGconn, values: Sequence[Value]) -> PQGen[list[pq.abc.PGresult]]:
    pgconn.send_query_prepared(NAME, values, _FORMATS)
    results: list[pq.abc.PGresult] = yield from generators.execute(pgconn)
    return results


def _array(type_oid: int, items: Sequence[bytes]) -> bytes:
    """Put items, each with its length before it, into PostgreSQL's binary form of an array."""
    return _ARRAY.pack(1, 1, type_oid, len(items), 1) + b"".join(items)


def _texts(texts: Iterable[str]) -> bytes:
    encoded = [text.encode() for text in texts]
    return _array(_TEXT, [_LENGTH.pack(len(text)) + text for text in encoded])


def _numbers(numbers: Iterable[int]) -> bytes:
    return b"{%b}" % ",".join(map(str, numbers)).encode()


def _optional(type_oid: int, items: Sequence[Any], encode: Callable[[Any], bytes]) -> Value:
    """Encode items of which some are None; None when all are."""
    if not any(item is not None for item in items):
        return None
    return _array(type_oid, [_item(item, encode) for item in items])


def _item(item: Any, encode: Callable[[Any], bytes]) -> bytes:
    if item is None:
        return _NULL_ITEM
    encoded = encode(item)
    return _LENGTH.pack(len(encoded)) + encoded


def _jsonb(document: object) -> bytes:
    return _JSONB_VERSION + orjson.dumps(document)


def _tags(tags: Sequence[str]) -> bytes:
    """Render a text that PostgreSQL reads as an array: arrays in arrays would have to be even."""
    quoted = (tag.replace("\\", "\\\\").replace('"', '\\"') for tag in tags)
    return ("{" + ",".join(f'"{tag}"' for tag in quoted) + "}").encode()


def _times(events: Sequence[EncodedEvent]) -> Value:
    if all(event.occurred_at is None for event in events):
        return None
    times = (event.occurred_at for event in events)
    return (
        b"{%b}" % ",".join("NULL" if time is None else time.isoformat() for time in times).encode()
    )
