"""The transactions in which a workspace's sinks send changes: see `placed_transactions`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.read.kafka_topics import KafkaTopics
from projections.serve.feed_places import FeedPlace, place_of
from projections.sinks.placed_transactions import KeyedRecord, PlacedTransactions

_AGAIN = "It is tried again by itself; penstock status shows whether Kafka runs."


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCursor:
    """How far a sink has come: all changes up to `place` are in the topic of that id.

    `records` is how many were sent in all, under which `key` and to how many `partitions`; None in
    a place that was written before these were kept.
    """

    projection: str
    topic: str
    topic_id: str
    place: FeedPlace
    records: int
    key: tuple[str, ...] | None
    partitions: int | None


class SinkTransactions:
    """The transactions of all sinks of a workspace, which share one transactional id.

    One that is `doubtful` is of no use: make another one. For one thread.
    """

    def __init__(self, topics: KafkaTopics, *, workspace: str, max_record_bytes: int) -> None:
        name = f"_penstock.{workspace}.sinks"
        self._transactions = PlacedTransactions(
            topics, name, max_record_bytes=max_record_bytes, again=_AGAIN
        )
        found = [_cursor(key, place) for key, place in self._transactions.places.items()]
        self.cursors = {(each.projection, each.topic): each for each in found}

    @property
    def doubtful(self) -> bool:
        """Whether it is not known how the last transaction ended."""
        return self._transactions.doubtful

    def send(self, records: Sequence[KeyedRecord], cursor: SinkCursor) -> None:
        """Send records and the place behind them; see `PlacedTransactions.send`."""
        key = json.dumps([cursor.projection, cursor.topic]).encode()
        place = {
            "topic_id": cursor.topic_id,
            "place": str(cursor.place),
            "records": cursor.records,
            "key": cursor.key,
            "partitions": cursor.partitions,
        }
        self._transactions.send(records, cursor.topic, key=key, place=json.dumps(place).encode())
        self.cursors[cursor.projection, cursor.topic] = cursor

    def close(self) -> None:
        """Give up what is open."""
        self._transactions.close()


def _cursor(key: bytes, value: bytes) -> SinkCursor:
    projection, topic = json.loads(key)
    kept = json.loads(value)
    names = kept.get("key")
    place = place_of(kept["place"])
    assert place is not None, "a place is written behind rows"
    return SinkCursor(
        projection=projection,
        topic=topic,
        topic_id=kept["topic_id"],
        place=place,
        records=kept["records"],
        key=None if names is None else tuple(names),
        partitions=kept.get("partitions"),
    )
