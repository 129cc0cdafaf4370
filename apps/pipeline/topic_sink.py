"""One projection whose changes go to a Kafka topic, each once.

1. Look which version the table has, and where the last transaction says that the topic is.
2. Read the changes behind that place, version by version, a bounded number at a time.
3. Send them and the place behind them in one transaction.

A crash before the end of 3 leaves nothing that readers of committed records see, one behind it
leaves both: whoever starts next goes on from the place.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from apps.pipeline.sink_records import RecordForm, SinkRecord
from apps.pipeline.sink_transactions import SinkCursor, SinkTransactions
from apps.topics import KafkaTopics
from kernel.errors import Conflict, Incompatible, Misconfigured, NotFound
from kernel.positions import DeltaVersion, TopicId
from projections.serve.feed_places import FeedPlace
from projections.serve.newest_runs import WatchedTable
from projections.serve.table_steps import Changes, TableSteps
from projections.sql.sinks import TopicSink

_MOST_RECORDS, _MOST_BYTES = 5_000, 16 * 2**20
"""Of one transaction; one more batch of rows may come on top."""
_TOPIC_LOOK_S = 10.0
_KEPT_S = 3_600.0
"""A place that moved on without records is written down after so long: versions are not kept for
ever."""
_ANOTHER = "Declare another topic as the sink, which gets all rows"
_OR_ANEW = f"{_ANOTHER}, or delete this one: it is made again, and gets all rows."


@dataclass(slots=True, kw_only=True)
class SinkState:
    """What the status shows of a sink: the version that it has sent, and what waits."""

    topic: str
    version: int | None = None
    newest: int | None = None
    epoch: int | None = None
    records: int = 0
    lag_s: float = 0.0
    error: str | None = None


class ProjectionSink:
    """Brings one topic up to one projection's table. After an error it is made anew."""

    def __init__(
        self,
        *,
        declared: TopicSink,
        key: tuple[str, ...],
        steps: TableSteps,
        projection: str,
        form: RecordForm,
        topics: KafkaTopics,
        transactions: SinkTransactions,
    ) -> None:
        self._declared = declared
        self._key = key
        self._steps = steps
        self._projection = projection
        self._form = form
        self._topics = topics
        self._transactions = transactions
        self._table = WatchedTable(steps.path)
        self._changes: Iterator[Changes] | None = None
        self._topic: TopicId | None = None
        self._looked_at = 0.0
        self._behind_since: float | None = None
        self._kept_at = time.monotonic()
        self._cursor: SinkCursor | None = None
        self.state = SinkState(topic=declared.topic)

    def step(self) -> bool:
        """Send the next changes, if there are any; return whether there were."""
        self._table.moved()
        if self._table.table is None:
            return False  # Its first run is to come.
        topic = self._look_at_topic()
        newest = DeltaVersion(self._table.table.version())
        place = None if self._cursor is None else self._cursor.place
        if place is not None and (place.table_id, place.version) > (place.table_id, newest):
            raise self._of_another_table()
        if self._changes is None:
            self._changes = self._steps.after(place, newest, self._key)
        try:
            records, last = self._next_records()
        except NotFound as error:
            raise NotFound(error.message, remedy=f"{_ANOTHER}.") from error
        if last is not None:
            self._sent(records, last, topic)
        self._tell(newest)
        return last is not None

    def _next_records(self) -> tuple[list[SinkRecord], Changes | None]:
        assert self._changes is not None
        records: list[SinkRecord] = []
        size, last = 0, None
        for changes in self._changes:
            made = self._form.records(changes)
            records, last, size = [*records, *made], changes, size + sum(r.nbytes for r in made)
            if len(records) >= _MOST_RECORDS or size >= _MOST_BYTES:
                return records, last
        self._changes = None
        return records, last

    def _sent(self, records: list[SinkRecord], last: Changes, topic: TopicId) -> None:
        before = 0 if self._cursor is None else self._cursor.records
        cursor = SinkCursor(
            projection=self._projection,
            topic=self._declared.topic,
            topic_id=topic.id,
            place=last.behind,
            records=before + len(records),
            key=self._key,
            partitions=topic.partitions,
        )
        if records or time.monotonic() - self._kept_at > _KEPT_S:
            self._transactions.send(records, cursor)
            self._kept_at = time.monotonic()
        self._cursor = cursor
        if last.epoch is not None:
            self.state.epoch = last.epoch

    def _look_at_topic(self) -> TopicId:
        """Make the topic where it is missing, and see whether it is the one of before.

        One that was made again has nothing: it gets all rows. Raises `Misconfigured` for another
        number of partitions than the declared one, `Incompatible` for another one than before.
        """
        now = time.monotonic()
        if self._topic is not None and now - self._looked_at < _TOPIC_LOOK_S:
            return self._topic
        name, wanted = self._declared.topic, self._declared.partitions
        found = self._topics.ids([name]).get(name)
        if found is None:
            self._topics.make(name, wanted or 1, {"cleanup.policy": "compact"})
            found = self._topics.made(name)
        if self._topic is None or found.id != self._topic.id:
            self._begin(found)
        had = None if self._cursor is None else self._cursor.partitions
        if had is not None and found.partitions != had:
            # Keys are in other partitions now: their old rows would stay where they were.
            raise Incompatible(
                f"topic {name} has {found.partitions} partitions, and had {had} when rows were "
                "sent to it",
                remedy=_OR_ANEW,
            )
        if wanted is not None and found.partitions != wanted:
            raise Misconfigured(
                f"topic {name} has {found.partitions} partitions, sink_partitions says {wanted}",
                remedy=f"Write sink_partitions = '{found.partitions}', then penstock projection "
                "apply FILE.sql; or declare another topic, or delete this one: it is made again as "
                "declared, and gets all rows.",
            )
        self._topic, self._looked_at = found, now
        return found

    def _begin(self, topic: TopicId) -> None:
        """Go on where the last transaction for this very topic ended."""
        self._changes = None
        known = self._transactions.cursors.get((self._projection, self._declared.topic))
        self._cursor = None
        if known is None or known.topic_id != topic.id:
            return
        if known.place.table_id != self._steps.table_id:
            raise self._of_another_table()
        if known.key is not None and known.key != self._key:
            raise Incompatible(
                f"topic {self._declared.topic} has records by the key {', '.join(known.key)}, and "
                f"the key of {self._projection} is {', '.join(self._key)}",
                remedy=f"{_ANOTHER}: penstock projection apply FILE.sql",
            )
        self._cursor = replace(known, partitions=known.partitions or topic.partitions)

    def _of_another_table(self) -> Conflict:
        return Conflict(
            f"topic {self._declared.topic} has the changes of a table that was here before: what "
            "it has too much is not known",
            remedy=_OR_ANEW,
        )

    def _tell(self, newest: DeltaVersion) -> None:
        place: FeedPlace | None = None if self._cursor is None else self._cursor.place
        whole = place is not None and place.done is None and place.version >= newest
        now = time.monotonic()
        self._behind_since = None if whole else (self._behind_since or now)
        self.state.lag_s = 0.0 if self._behind_since is None else now - self._behind_since
        self.state.newest = newest
        self.state.version = None if place is None else place.version
        self.state.records = 0 if self._cursor is None else self._cursor.records
