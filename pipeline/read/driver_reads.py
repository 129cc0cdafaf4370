"""Small ranges of Kafka, read in this process by a consumer that has them before they are planned.

Spark plans which offsets make an epoch. Of a small one the records are read here: a Spark job for
some hundred records takes more than all that is done with them. The consumer goes on where it was,
so that what comes next is fetched while an epoch is made.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from kernel.positions import Offsets
from lake.collecting import beyond, small_epoch

log = logging.getLogger("penstock.pipeline")

PATIENCE_S = 5.0
"""Without anything new for so long, Spark reads the range: it has the better words for why not."""
HELD_BYTES = 8 * 2**20
"""What is kept of records behind a range, while others of the range are waited for."""
_AT_ONCE = 10_000
_IN_A_FLOOD = 500
_LOOK_S = 0.01
_LEADER_S = 1.0
"""So long the broker is waited for when it is asked who leads a topic."""
_FEW_TOPICS = 8
"""More topics than that are not asked for one by one: the broker tells of all that it has."""
_PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
"""What the consumer tells of and gets over by itself."""
_ODD = (SystemError, UnicodeError, OverflowError, pa.ArrowInvalid)
"""What the client and Arrow raise over names of headers and times that they cannot say."""
_FIRST_MS, _LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The times of the years 1 to 9999."""
_NOWHERE = 2**63
"""Behind all offsets: nothing is wanted of a partition that was left."""
_MESSAGE_BYTES = 300
"""What a record takes beside its bytes."""
RECORDS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""Records as Spark's Kafka source gives them."""

Place = tuple[str, int]


class DriverReads:
    """Reads ranges, each partition in its order. Not shared between threads; `close` ends it."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._consumer: Consumer | None = None
        self._at: dict[Place, int] = {}
        self._reached: dict[Place, int] = {}
        self._held: dict[Place, deque[Message]] = {}
        self._held_bytes = 0

    def read(self, start: Offsets, end: Offsets, *, most_bytes: int) -> pa.Table | None:
        """Return the committed records in `[start, end)` as `RECORDS`; None where Spark has to.

        That is where a partition has no start, and where the broker does not give what it has
        told of. Raises `TooLarge` for more than `most_bytes`.
        """
        wanted: dict[Place, tuple[int, int]] = {}
        for topic, places in end.items():
            for partition, last in places.items():
                first = start.get(topic, {}).get(partition)
                if first is None:
                    return None
                if first < last:
                    wanted[topic, int(partition)] = first, last
        try:
            self._go_to({place: first for place, (first, _) in wanted.items()})
            found = self._read({place: last for place, (_, last) in wanted.items()}, most_bytes)
        except (KafkaException, *_ODD) as error:
            log.warning("a range is left to Spark to read: %r", error)
            found = None
        except BaseException:
            self.close()
            raise
        if found is None:
            self.close()
            return None
        self._at |= {place: last for place, (_, last) in wanted.items() if place in self._at}
        return pa.Table.from_batches(found, RECORDS)

    def close(self) -> None:
        """Forget what was read ahead, and leave the broker."""
        consumer, self._consumer = self._consumer, None
        self._at, self._reached, self._held, self._held_bytes = {}, {}, {}, 0
        if consumer is not None:
            consumer.close()

    def _read(self, ends: Mapping[Place, int], most_bytes: int) -> list[pa.RecordBatch] | None:
        """Return what lies below the ends; None where nothing comes any more."""
        size, found = 0, list[pa.RecordBatch]()
        taken: Sequence[Message] = self._held_below(ends)
        limit, in_vain = time.monotonic() + PATIENCE_S, False
        while True:
            if taken:
                found.append(_batch(taken))
                size += found[-1].nbytes
                if size > most_bytes:
                    raise beyond(small_epoch(most_bytes), f"{size} bytes")
                limit = time.monotonic() + PATIENCE_S
            missing = sum(max(0, last - self._reached[place]) for place, last in ends.items())
            if not missing:
                return found
            if time.monotonic() > limit:
                log.warning("%d records did not come within %g s", missing, PATIENCE_S)
                return None
            # Where others flood, who asks for one record at a time waits for long.
            most = max(missing, _IN_A_FLOOD) if in_vain else missing
            taken = self._polled(ends, min(most, _AT_ONCE))
            in_vain = not taken

    def _polled(self, ends: Mapping[Place, int], most: int) -> list[Message]:
        """Take what has come: what is below the ends is returned, what is behind them is held."""
        assert self._consumer is not None, "a consumer was made to go to these places"
        taken: list[Message] = []
        place, reached, end = ("", -1), _NOWHERE, -1
        for message in self._consumer.consume(most, _LOOK_S):
            # These may be None, says the client, which is so of other messages.
            told: Any = (message.topic(), message.partition())
            if told != place:  # Messages of one partition come one after the other.
                self._reach(place, reached)
                place, end = told, ends.get(told, -1)
                reached = self._reached[place] if place in self._at else _NOWHERE
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                # What is said of no topic, as of groups, which are not used, ends in patience.
                if message.topic() is not None and error.code() not in _PASSING:
                    raise KafkaException(error)
                continue
            offset: Any = message.offset()
            if offset < reached:
                continue
            if error is not None:
                # Markers of transactions take up offsets and are no records.
                reached = offset
                continue
            reached = offset + 1
            if offset < end:
                taken.append(message)
            else:
                self._held.setdefault(place, deque()).append(message)
                self._held_bytes += _size(message)
        self._reach(place, reached)
        if self._held_bytes > HELD_BYTES:
            self._leave([place for place in self._held if place not in ends])
            self._leave([place for place in self._held if self._reached[place] > ends[place]])
        return taken

    def _reach(self, place: Place, reached: int) -> None:
        if reached != _NOWHERE:
            self._reached[place] = reached

    def _held_below(self, ends: Mapping[Place, int]) -> list[Message]:
        """Take what came ahead of its range, and is of this one."""
        taken: list[Message] = []
        for place, last in ends.items():
            held = self._held.get(place, deque())
            while held and _offset(held[0]) < last:
                taken.append(held.popleft())
                self._held_bytes -= _size(taken[-1])
            if not held:
                self._held.pop(place, None)
        return taken

    def _go_to(self, firsts: Mapping[Place, int]) -> None:
        """Read on at these offsets; partitions that are there already go on as they are."""
        moved = {place: first for place, first in firsts.items() if self._at.get(place) != first}
        if not moved:
            return
        self._leave([place for place in moved if place in self._at])
        if self._consumer is None:
            self._consumer = self._made()
        new = {topic for topic, _ in moved} - {topic for topic, _ in self._at}
        self._consumer.incremental_assign([TopicPartition(*p, at) for p, at in moved.items()])
        self._ask_for_leaders(self._consumer, new)
        self._at |= moved
        self._reached |= moved

    @staticmethod
    def _ask_for_leaders(consumer: Consumer, topics: Collection[str]) -> None:
        """Ask who leads topics that the consumer did not read before.

        By itself it looks once a second who leads those that it was given: the first record of a
        topic would have all lanes of its epoch wait for that. What is answered here it takes, too.
        """
        with suppress(KafkaException):  # It finds out by itself, or nothing comes of the range.
            for one in topics if len(topics) <= _FEW_TOPICS else [None]:
                consumer.list_topics(one, timeout=_LEADER_S)

    def _leave(self, places: Collection[Place]) -> None:
        """Forget partitions, and what was read ahead of them."""
        if not places:
            return
        assert self._consumer is not None, "it has been somewhere"
        self._consumer.incremental_unassign([TopicPartition(*place) for place in places])
        for place in places:
            self._held_bytes -= sum(map(_size, self._held.pop(place, ())))
            self._at.pop(place, None)

    def _made(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                # A name is asked for; nothing is subscribed to or committed under it.
                "group.id": "penstock-driver",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "allow.auto.create.topics": False,
                "isolation.level": "read_committed",
                "check.crcs": True,
                # Of a record that is larger the first one of a fetch comes all the same.
                "fetch.max.bytes": 8 * 2**20,
                "queued.max.messages.kbytes": 16 * 1024,
                # The next request waits for so long, when the queue was full or a fetch was empty.
                "fetch.queue.backoff.ms": 10,
                "fetch.wait.max.ms": 100,
                "log_level": 3,
            }
        )


def _offset(message: Message) -> int:
    offset: Any = message.offset()
    return int(offset)


def _size(message: Message) -> int:
    told: Any = message.headers() or ()
    headers = sum(len(name) + len(value or b"") for name, value in told)
    return _MESSAGE_BYTES + len(message.key() or b"") + len(message.value() or b"") + headers


def _batch(messages: Sequence[Message]) -> pa.RecordBatch:
    # Producers set times as they like, and microseconds hold not all of their milliseconds.
    times = np.array([message.timestamp()[1] for message in messages], np.int64)
    columns = (
        [message.topic() for message in messages],
        [message.partition() for message in messages],
        [message.offset() for message in messages],
        pa.array(np.clip(times, _FIRST_MS, _LAST_MS)).cast(pa.timestamp("ms", "UTC")),
        [message.key() for message in messages],
        [message.value() for message in messages],
        _headers([message.headers() for message in messages]),
    )
    arrays = [
        column.cast(item.type) if isinstance(column, pa.Array) else pa.array(column, item.type)
        for column, item in zip(columns, RECORDS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS)


def _headers(told: Sequence[Any]) -> pa.Array:
    """Return the headers of records, null for none: Arrow takes 3 us for each pair it is given."""
    names: list[str] = []
    values: list[bytes | None] = []
    ends: list[int | None] = []
    for pairs in told:
        ends.append(None if pairs is None else len(names))
        for name, value in pairs or ():
            names.append(name)
            values.append(value)
    kind = RECORDS.field("headers").type
    if not any(told):
        return pa.array([None if pairs is None else [] for pairs in told], kind)
    inner = [pa.array(names, pa.string()), pa.array(values, pa.binary())]
    flat = pa.StructArray.from_arrays(inner, fields=[*kind.value_type])
    return pa.ListArray.from_arrays(pa.array([*ends, len(names)], pa.int32()), flat, type=kind)
