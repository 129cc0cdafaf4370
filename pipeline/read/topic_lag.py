"""How far external topics are ahead of the log, in records and seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from kernel.positions import Offsets
from pipeline.commit.manifest_rows import Committed
from pipeline.position.lag import SourceLag
from pipeline.read.kafka_topics import KafkaTopics
from schemas.topic_records import TopicShape


class TopicHeads:
    """Looks at the topics of all declared sources. Call `look` about once a second."""

    def __init__(self, topics: KafkaTopics) -> None:
        self._topics = topics
        self._clear_at: dict[str, float] = {}
        """When nothing of a source was missing for the last time, as far as is known."""
        self.declared: Mapping[str, TopicShape] = {}
        self.lags: dict[str, SourceLag] = {}

    def look(self, last: Committed | None) -> Mapping[str, SourceLag]:
        """Return the lag of each source: its seconds are how long something was behind.

        Of what was behind before this process began that is known since the last epoch. Raises
        `Unavailable` when Kafka does not answer.
        """
        declared = self.declared
        ends = ends_of(self._topics, declared)
        taken = last.end if last is not None else {}
        now = time.time()
        found = {}
        for name, shape in declared.items():
            records = records_behind(ends.get(shape.topic, {}), taken.get(shape.topic, {}))
            if not records:
                self._clear_at[name] = now
            before = now if last is None else last.at.timestamp()
            seconds = max(0.0, now - self._clear_at.setdefault(name, before))
            waits = waits_for(shape, ends)
            found[name] = SourceLag(bytes=0, seconds=seconds, records=records, unknown=waits)
        self.lags = found
        return found


def ends_of(topics: KafkaTopics, declared: Mapping[str, TopicShape]) -> Offsets:
    """Return where the topics of sources end now; those that are not there yet are left out."""
    there = topics.matching(pattern_of(declared)) if declared else {}
    return topics.ends({topic: parts for topic, parts in there.items() if parts})


def records_behind(ends: Mapping[str, int], taken: Mapping[str, int]) -> int:
    """Count the offsets of a topic that no epoch has yet."""
    return sum(max(0, end - taken.get(partition, 0)) for partition, end in ends.items())


def waits_for(shape: TopicShape, ends: Offsets) -> str | None:
    """Say what the source of a topic waits for; None where the topic is there."""
    return None if shape.topic in ends else f"there is no topic {shape.topic} yet"


def pattern_of(declared: Mapping[str, TopicShape]) -> str:
    """Return a regular expression of the topics of sources."""
    return "|".join(sorted(re.escape(shape.topic) for shape in declared.values()))
