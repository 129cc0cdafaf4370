"""What one batch of a stream is made of: its exact offsets, and the topics that they belong to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from kernel.errors import Unavailable
from kernel.positions import Offsets, TopicId
from pipeline.commit.ingest import Ingest
from pipeline.commit.manifest_rows import Bound
from pipeline.read.gaps import ReadStanding, Skip, next_offsets, passed, standing_of
from pipeline.read.kafka_records import records_between
from pipeline.read.kafka_topics import KafkaTopics
from schemas.identifiers import EVENTS

_MESSAGES = "message"
"""How the topics end that Debezium sends logical messages to, behind the name of a source."""


def has_messages(topic: str, prefix: str, owners: Mapping[str, str]) -> bool:
    """Whether a captured source's logical messages go to a topic, heartbeats among them.

    Tables, categories of events and external topics, which `owners` has, may be called so, too.
    """
    source, _, rest = topic.removeprefix(prefix).partition(".")
    return rest == _MESSAGES and source != EVENTS and topic not in owners


def only_messages(bound: Bound, told: Callable[[str], bool]) -> bool:
    """Whether only topics of logical messages moved on; `told` says which ones these are."""
    moved = (topic for topic, places in bound.end.items() if places != bound.start.get(topic))
    return all(map(told, moved))


def part_from(bound: Bound, start: Offsets) -> tuple[Offsets, Offsets]:
    """Return the part of an epoch's offsets that begins at `start`."""
    return start, {t: {p: bound.end[t][p] for p in places} for t, places in start.items()}


def next_part(bound: Bound, at_once: Callable[[int], int], told: Callable[[str], bool]) -> Bound:
    """Return an epoch over the next part of what a batch still has: the same share of each topic.

    `at_once` says how many of so many records it may have. It has at least one of each partition
    that has any: whoever asks again until the ends are those of `bound` comes to them. What may be
    passed by is not parted: topics of logical messages, as `told` says.
    """
    records = records_between(bound.start, bound.end)
    most = at_once(records)
    if most >= records or only_messages(bound, told):
        return bound
    end = {
        topic: {
            place: (first := bound.start[topic][place]) - (first - last) * most // records
            for place, last in places.items()
        }
        for topic, places in bound.end.items()
    }
    return replace(bound, end=end)


def nothing_more(ingest: Ingest, run_id: str) -> Bound:
    """Return the next epoch as one that reads nothing."""
    end = ingest.last.end if ingest.last else {}
    return Bound(epoch=ingest.next_epoch, run_id=run_id, batch_id=-1, start=end, end=end)


def lane_records(
    bound: Bound, lane_of: Callable[[str], str], told: Callable[[str], bool]
) -> Mapping[str, int]:
    """Return how many records an epoch has of each lane that has any.

    Topics of logical messages, as `told` says, do not count.
    """
    counts: Counter[str] = Counter()
    for topic, places in bound.end.items():
        if not told(topic):
            counts[lane_of(topic)] += records_between(bound.start, {topic: places})
    return {lane: count for lane, count in counts.items() if count}


class BatchPlans:
    """Plans the batches of one run of a stream, which began at `start` with the topics `ids`."""

    def __init__(
        self,
        topics: KafkaTopics,
        ingest: Ingest,
        skips: Collection[Skip],
        *,
        run_id: str,
        start: Offsets,
        ids: Mapping[str, TopicId],
    ) -> None:
        self._topics = topics
        self._ingest = ingest
        self._skips = list(skips)
        self._run_id = run_id
        self._start = start
        self._topic_ids = dict(ids)
        self._looked: Mapping[str, TopicId] = {}

    def look(self, end: Offsets) -> None:
        """Ask which topics the next epoch up to `end` moves on, for `bound`: before its turn.

        A broker that is busy takes its time, which others would wait for. Raises `Unavailable`.
        """
        self._looked = self._topics.ids(self._moved(standing_of(self._ingest.last), end))

    def bound(self, batch_id: int, end: Offsets) -> Bound:
        """Return the next epoch, bound to what is to be read up to `end` behind the epochs before.

        Where these went further than `end`, it goes as far as they did.
        """
        start, topics = self._known(end)
        new = {
            topic: [int(p) for p in places if p not in start.get(topic, {})]
            for topic, places in end.items()
        }
        first = self._topics.earliest({t: parts for t, parts in new.items() if parts})
        return Bound(
            epoch=self._ingest.next_epoch,
            run_id=self._run_id,
            batch_id=batch_id,
            start={
                topic: {
                    p: start.get(topic, {}).get(
                        p, self._start.get(topic, {}).get(p, first.get(topic, {}).get(p, 0))
                    )
                    for p in places
                }
                for topic, places in end.items()
            },
            end={
                topic: {p: max(last, start.get(topic, {}).get(p, 0)) for p, last in places.items()}
                for topic, places in end.items()
            },
            topics=topics,
        )

    def _known(self, end: Offsets) -> tuple[Offsets, dict[str, TopicId]]:
        """Return where a batch begins, and the topics in it that the manifest does not know yet.

        Raises `Unavailable` when a topic with new records is not the one that this run began with:
        the next run looks at all of them.
        """
        read: ReadStanding = standing_of(self._ingest.last)
        # Reading comes to the place of a skip back once more by itself: it is not made again there.
        self._skips = [skip for skip in self._skips if not passed(skip, read)]
        moved = self._moved(read, end)
        now = {topic: self._looked[topic] for topic in moved if topic in self._looked}
        now |= self._topics.ids([topic for topic in moved if topic not in now])
        going_on = next_offsets(read, self._skips, {**self._topic_ids, **now})
        expected = {**self._topic_ids, **going_on.topics}
        for topic in moved:
            if topic not in now or now[topic].id != expected.get(topic, now[topic]).id:
                raise Unavailable(f"topic {topic} was deleted or made again while it was read")
        self._topic_ids |= now
        noted = {**self._topic_ids, **going_on.topics}
        changed = {t: noted[t] for t in end if t in noted and noted[t] != read.topics.get(t)}
        return going_on.offsets, changed

    def _moved(self, read: ReadStanding, end: Offsets) -> list[str]:
        return [topic for topic, places in end.items() if places != read.offsets.get(topic)]
