"""Kafka transactions that send records and the place behind them together.

A place is a record of a compacted topic, written in the same transaction as the records that it
counts: both are there, or neither. The topic's name is the transactional id, too, so that whoever
begins ends what another process left open, and shuts that one out; after it no place is hidden
behind a transaction that is still open.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from kernel import failpoints
from kernel.errors import Misconfigured, Unavailable
from pipeline.read.kafka_topics import KafkaTopics

_TIMEOUT_S = 20.0
_PLACES = {
    "cleanup.policy": "compact",
    # A place is of no worth once the next one is there: the topic stays as small as it can.
    "segment.ms": "3600000",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
}
_TOO_LARGE = "Raise kafka.max_record_bytes and the topic's max.message.bytes, or select less."
_REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: _TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Allow the workspace's user to write to the topic.",
    KafkaError.INVALID_RECORD: "See the topic's settings on the broker; it is tried again.",
    KafkaError.POLICY_VIOLATION: "See the topic's settings on the broker; it is tried again.",
}
"""What a broker says of one topic or record, while it does well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRecord:
    """One record to be sent."""

    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @property
    def nbytes(self) -> int:
        """How large it is, but for its headers."""
        return len(self.key) + len(self.value or b"")


class PlacedTransactions:
    """One producer. One that is `doubtful` is of no use: make another one.

    Beginning one fences the one before. `places` are what committed transactions wrote before, by
    key, the newest of each; `again` says what becomes of a failure. For one thread.
    """

    def __init__(
        self, topics: KafkaTopics, name: str, *, max_record_bytes: int, again: str
    ) -> None:
        self._bootstrap = topics.bootstrap
        self._topic = name
        self._again = again
        self.doubtful = False
        topics.make(self._topic, 1, _PLACES)
        self._producer = Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": self._topic,
                "partitioner": "murmur2_random",
                "message.max.bytes": max_record_bytes,
                "log_level": 3,
            }
        )
        with self._kafka("begin"):
            self._producer.init_transactions(_TIMEOUT_S)
        self.places: Mapping[bytes, bytes] = dict(self._read())

    def send(self, records: Sequence[KeyedRecord], topic: str, *, key: bytes, place: bytes) -> None:
        """Send records and the place behind them, all or nothing.

        Raises `Misconfigured` where Kafka refuses a record: nothing was sent. Raises `Unavailable`
        where it failed otherwise or is not known: this is `doubtful` from then on.
        """
        self.doubtful = True  # Until it is known how this ends.
        with self._kafka(f"send to {topic}"):
            self._producer.begin_transaction()
            refused = self._produced(records, topic)
            if refused is None:
                self._producer.produce(self._topic, place, key)
                self._producer.flush(_TIMEOUT_S)
                failpoints.hit(failpoints.SINK_BEFORE_COMMIT)
                self._producer.commit_transaction(_TIMEOUT_S)
            else:
                self._producer.abort_transaction(_TIMEOUT_S)
        self.doubtful = False
        if refused is not None:
            raise Misconfigured(
                f"topic {topic} does not take a record: {refused.str()}",
                remedy=_REMEDIES[refused.code()],
            )
        failpoints.hit(failpoints.SINK_AFTER_COMMIT)

    def _produced(self, records: Sequence[KeyedRecord], topic: str) -> KafkaError | None:
        """Hand all records to the broker; return why one is refused, None where all are taken."""
        refused: list[KafkaError] = []

        def told(error: KafkaError | None, _: Message) -> None:
            if error is not None and error.code() in _REMEDIES:
                refused.append(error)

        try:
            for record in records:
                headers: list[tuple[str, str | bytes | None]] = [*record.headers]
                self._producer.produce(
                    topic, record.value, record.key, headers=headers, on_delivery=told
                )
        except KafkaException as error:
            if error.args[0].code() not in _REMEDIES:
                raise
            refused.append(error.args[0])
        self._producer.flush(_TIMEOUT_S)
        return next(iter(refused), None)

    def close(self) -> None:
        """Give up what is open."""
        with suppress(KafkaException):
            self._producer.abort_transaction(_TIMEOUT_S)

    def _read(self) -> Iterator[tuple[bytes, bytes]]:
        """Read the places that committed transactions wrote, the newest of each last."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": self._topic,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 3,
            }
        )
        try:
            with self._kafka(f"read {self._topic}"):
                consumer.assign([TopicPartition(self._topic, 0, 0)])
                while True:
                    message = consumer.poll(_TIMEOUT_S)
                    if message is None:
                        raise Unavailable(f"Kafka at {self._bootstrap} does not give {self._topic}")
                    error = message.error()
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        return
                    if error is not None:
                        raise KafkaException(error)
                    yield message.key() or b"", message.value() or b""
        finally:
            consumer.close()

    @contextmanager
    def _kafka(self, what: str) -> Iterator[None]:
        """The one seam at which errors of the client become ours.

        A producer that was fenced amid a flush ends in a `SystemError` about half of the time: the
        client sets the fatal error as Python's own and calls the deliveries' callbacks with it.
        """
        try:
            yield
        except (KafkaException, BufferError, SystemError) as error:
            raise Unavailable(
                f"Kafka at {self._bootstrap} did not {what}: {_told(error)}",
                remedy=self._again,
            ) from error


def _told(error: Exception) -> object:
    """Return what the client says, or what stands behind an error that the client garbled."""
    if not isinstance(error, SystemError):
        return error
    return error.__cause__ or "the producer was shut out, or failed for good"
