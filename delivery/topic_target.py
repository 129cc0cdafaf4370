"""A Kafka topic as the target of a replay of events.

    Moved -> KeyedRecord: key and value as in the topics of the event store, headers, marked

Records and the place behind them are one Kafka transaction. The place says which replay it is, so
that a topic has one replay, once: the same command goes on with it, another one is refused.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence

import orjson

from cdc.connectors import EVENT_HEADERS
from kernel.errors import Conflict, InvalidRequest, Unavailable
from kernel.positions import TopicId
from pipeline.read.kafka_topics import KafkaTopics
from projections.sinks.placed_transactions import KeyedRecord, PlacedTransactions
from replay.elsewhere.passage import AT_ONCE, Batching, Moved

log = logging.getLogger("penstock.replay")

ORIGIN_STORE, ORIGIN_POSITION = "penstock-origin-store", "penstock-origin-position"
ORIGIN_TIMES = "penstock-origin-occurred-at", "penstock-origin-recorded-at"
SILENT = "penstock-silent"
_AGAIN = "Give the same command again: it goes on where it was."
_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_OF_A_STORE = re.compile(r"(?:.*\.)?events\.[a-z][a-z0-9_]{0,62}")


def refuse_name(topic: str, prefix: str, sources: Sequence[str] = ()) -> None:
    """Raise `InvalidRequest` for a name that no topic has, or that ingest takes in as its own."""
    if _NAME.fullmatch(topic) is None or topic in {".", ".."}:
        raise InvalidRequest(
            f"'{topic}' is no name of a topic",
            remedy="It has letters, digits, dots, - and _, at most 200: --to topic:replayed-orders",
        )
    captured = [f"{prefix}{each}." for each in sources]
    if _OF_A_STORE.fullmatch(topic) or topic.startswith(("_", *captured)):
        raise InvalidRequest(
            f"the topic {topic} is one that is taken in as the facts of a store or a source",
            remedy="Name another one, as --to topic:replayed-orders",
        )


class TopicTarget:
    """Sends events to one topic. `told`: what makes a replay the same one, `effects` among it.

    A topic that is made gets `usually` partitions where none are asked for. `workspace` names
    whose transactions they are.
    """

    def __init__(
        self,
        topics: KafkaTopics,
        topic: str,
        told: Mapping[str, object],
        *,
        workspace: str,
        max_record_bytes: int,
        usually: int,
        partitions: int | None = None,
    ) -> None:
        self._topics = topics
        self._topic = topic
        self._largest = max_record_bytes
        self._told = json.loads(json.dumps(told))
        self._silent = () if told.get("effects") else ((SILENT, b"true"),)
        self._id = self._found(partitions or usually, partitions)
        name = f"_penstock.{workspace}.replay.{topic}"
        self._transactions = PlacedTransactions(
            self._topics,
            name,
            max_record_bytes=self._largest,
            again=_AGAIN,
        )

    @property
    def batching(self) -> Batching:
        """Return what goes out together."""
        return AT_ONCE

    def reached(self) -> int:
        """Return the position up to which this replay is there; 0 where the topic is new to it."""
        place = self._transactions.places.get(self._topic.encode())
        if place is None:
            return 0
        kept = json.loads(place)
        if kept["topic_id"] != self._id.id:
            return 0  # The topic was deleted and made again: nothing is there.
        if kept["replay"] != self._told:
            names = sorted(n for n in self._told if kept["replay"].get(n) != self._told[n])
            raise Conflict(
                f"the topic {self._topic} has a replay with another {' and '.join(names)}",
                remedy="Give the options that it began with, name another topic, or delete this "
                "one: it is made again.",
            )
        return int(kept["position"])

    def send(self, events: Sequence[Moved]) -> None:
        """Send events and the place behind them, all or nothing."""
        place = {
            "topic_id": self._id.id,
            "replay": self._told,
            "position": events[-1].origin.position,
        }
        records = [self._record(each) for each in events]
        key = self._topic.encode()
        self._transactions.send(records, self._topic, key=key, place=json.dumps(place).encode())

    def close(self) -> None:
        """Give up what is open."""
        self._transactions.close()

    def _found(self, wanted: int, asked: int | None) -> TopicId:
        found = self._topics.ids([self._topic]).get(self._topic)
        if found is None:
            self._topics.make(self._topic, wanted, {})
            found = self._topics.made(self._topic)
            self._allow_records()
        if asked is not None and found.partitions != asked:
            raise Conflict(
                f"the topic {self._topic} has {found.partitions} partitions, not {asked}",
                remedy="Leave --partitions out, or name another topic.",
            )
        return found

    def _allow_records(self) -> None:
        """Let the topic take what those of captured tables do: what came in may be as large.

        Whoever may not alter topics goes on: most events are small, and one that is not says so.
        """
        try:
            self._topics.allow([self._topic], self._largest)
        except Unavailable as error:
            log.warning("%s: %s", self._topic, error)

    def _record(self, moved: Moved) -> KeyedRecord:
        event, origin = moved.event, moved.origin
        values: dict[str, object] = {name: getattr(event, name) for name in EVENT_HEADERS}
        values |= {
            "id": str(event.id),
            "metadata": orjson.dumps(event.metadata).decode(),
            "tags": orjson.dumps(event.tags).decode(),
            "occurred_at": event.occurred_at.isoformat(),
            "recorded_at": event.recorded_at.isoformat(),
        }
        origin_times = origin.occurred_at.isoformat(), origin.recorded_at.isoformat()
        headers = [(name, str(each).encode()) for name, each in values.items() if each is not None]
        headers += [
            (ORIGIN_STORE, origin.store_id.encode()),
            (ORIGIN_POSITION, str(origin.position).encode()),
            *((name, text.encode()) for name, text in zip(ORIGIN_TIMES, origin_times, strict=True)),
            *self._silent,
        ]
        return KeyedRecord(key=event.stream.encode(), value=event.data, headers=(*headers,))
