"""How far external topics are ahead of the log, in records and seconds."""

from __future__ import annotations

import time
from collections.abc import Mapping

from apps.pipeline.source_lag import SourceLag
from apps.topic_sources import ends_of, records_behind, waits_for
from apps.topics import KafkaTopics
from pipeline.commit.manifest import Committed
from schemas.topic_records import TopicShape


class TopicHeads:
    """Looks at the topics of all declared sources. Call `look` about once a second."""

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics
        self._since: dict[str, float] = {}
        self.declared: Mapping[str, TopicShape] = {}
        self.lags: dict[str, SourceLag] = {}

    def look(self, last: Committed | None) -> Mapping[str, SourceLag]:
        """Return the lag of each source: its seconds are how long something was behind.

        Raises `Unavailable` when Kafka does not answer.
        """
        declared = self.declared
        ends = ends_of(self._topics, declared)
        taken = last.end if last is not None else {}
        now = time.time()
        found = {}
        for name, shape in declared.items():
            records = records_behind(ends.get(shape.topic, {}), taken.get(shape.topic, {}))
            since = self._since.setdefault(name, now) if records else now
            if not records:
                self._since.pop(name, None)
            waits = waits_for(shape, ends)
            found[name] = SourceLag(bytes=0, seconds=now - since, records=records, unknown=waits)
        self.lags = found
        return found
