"""A Kafka topic as the outlet of a projection's changes.

Records and the place behind them are one Kafka transaction: a crash before its end leaves nothing
that readers of committed records see, one behind it leaves both.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel.errors import Incompatible, Misconfigured
from kernel.positions import TopicId
from pipeline.read.kafka_topics import KafkaTopics
from projections.serve.table_steps import Changes
from projections.sinks.placed_transactions import KeyedRecord
from projections.sinks.sink_records import RecordForm
from projections.sinks.sink_transactions import SinkCursor, SinkTransactions
from projections.sql.words.sinks import TopicSink


class TopicOutlet:
    """An outlet that sends records to one topic."""

    another = "Declare another topic as the sink, which gets all rows"
    anew = f"{another}, or delete this one: it is made again, and gets all rows."

    repeats = False

    def __init__(
        self,
        *,
        declared: TopicSink,
        form: RecordForm,
        topics: KafkaTopics,
        transactions: SinkTransactions,
    ) -> None:
        self.name = declared.topic
        self.title = f"topic {declared.topic}"
        self._wanted = declared.partitions
        self._form = form
        self._topics = topics
        self._transactions = transactions

    def found(self) -> TopicId:
        """Return the topic, made where it is missing."""
        found = self._topics.ids([self.name]).get(self.name)
        if found is None:
            self._topics.make(self.name, self._wanted or 1, {"cleanup.policy": "compact"})
            found = self._topics.made(self.name)
        return found

    def check(self, found: TopicId, had: int | None) -> None:
        """Raise `Misconfigured` for another number of partitions than the declared one,
        `Incompatible` for another one than before.
        """
        if had is not None and found.partitions != had:
            # Keys are in other partitions now: their old rows would stay where they were.
            raise Incompatible(
                f"{self.title} has {found.partitions} partitions, and had {had} when rows were "
                "sent to it",
                remedy=self.anew,
            )
        if self._wanted is not None and found.partitions != self._wanted:
            raise Misconfigured(
                f"{self.title} has {found.partitions} partitions, sink_partitions says "
                f"{self._wanted}",
                remedy=f"Write sink_partitions = '{found.partitions}', then penstock projection "
                "apply FILE.sql; or declare another topic, or delete this one: it is made again as "
                "declared, and gets all rows.",
            )

    def records(self, changes: Changes) -> list[KeyedRecord]:
        """Return the records of some changes, in their order."""
        return self._form.records(changes)

    def send(self, records: Sequence[KeyedRecord], cursor: SinkCursor) -> None:
        """Send records and the place behind them, all or nothing."""
        self._transactions.send(records, cursor)
