"""Records that Kafka no longer has, though ingest never read them.

A topic's retention may pass what ingest has still to read (the pipeline stood still for a week), or
somebody deletes the topic, or makes another one under its name. Nothing can fill such a gap from
Kafka. It is a named state of its source, which stays out while the others go on, until
`penstock source resnapshot`: that copies the tables behind a new slot (or sends the event store's
events again) and notes in the book of installs up to where reading may skip.

Offsets alone do not tell another topic from the one that was read, once it has grown as long. The
manifest therefore keeps the id that Kafka gave each topic beside the offsets in it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from kernel.errors import Unavailable
from kernel.positions import Offsets, TopicId
from pipeline.commit.manifest_rows import Bound, Committed
from pipeline.installs.install_book import SKIP, InstallBook, InstallEntry
from pipeline.read.kafka_topics import KafkaTopics
from schemas.identifiers import EVENTS, OUTBOX

_KEY = "skips"
NOBODY: Mapping[str, str] = MappingProxyType({})


class Skip(NamedTuple):
    """Where reading stood, and the first record that Kafka had when the recovery was asked for.

    `was` is the id of the topic that `next` belongs to, `now` that of `first`: empty where the
    topic was gone, and in books of before ids were noted.
    """

    topic: str
    partition: str
    next: int
    first: int
    was: str = ""
    now: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStanding:
    """Where reading goes on, and which topics those offsets belong to."""

    offsets: Mapping[str, Mapping[str, int]]
    topics: Mapping[str, TopicId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaContents:
    """What Kafka has: `[first, ends)` of each partition, and which topics these are.

    Of those that are `silent` it tells nothing just now, each with why.
    """

    first: Offsets
    ends: Offsets
    topics: Mapping[str, TopicId] = field(default_factory=dict)
    gone: Collection[str] = ()
    silent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets of one partition: ingest goes on at `next`, Kafka has `[first, end)`.

    `was` is the id of the topic that was read, `now` that of the one under its name: empty where
    there is none, or where it is not known.
    """

    topic: str
    partition: str
    next: int
    first: int
    end: int
    was: str = ""
    now: str = ""

    def __str__(self) -> str:
        if self.was and not self.now:
            return f"{self.topic} was deleted, after {self.partition} was read up to {self.next}"
        if self.was != self.now:
            return (
                f"{self.topic} was deleted and made again, after {self.partition} was read up to"
                f" {self.next}: it is another topic now"
            )
        if self.next > self.end:
            return (
                f"{self.topic}/{self.partition} ends at {self.end}, but was read up to {self.next}:"
                " it is another topic now"
            )
        return f"{self.topic}/{self.partition} lacks {self.first - self.next} records"


def source_of(topic: str, prefix: str, owners: Mapping[str, str] = NOBODY) -> str:
    """Return the source that a topic belongs to; the event store's is `outbox`.

    `owners` has the declared sources of external topics.
    """
    if topic in owners:
        return owners[topic]
    name = topic.removeprefix(prefix).partition(".")[0]
    return OUTBOX if name == EVENTS else name


def silent_of(
    silent: Mapping[str, str], prefix: str, owners: Mapping[str, str] = NOBODY
) -> dict[str, Exception]:
    """Return the sources of topics that Kafka tells nothing of just now, each with what says so."""
    whys: dict[str, list[str]] = {}
    for topic, why in sorted(silent.items()):
        whys.setdefault(source_of(topic, prefix, owners), []).append(why)
    return {
        source: Unavailable(f"Kafka tells nothing of its topics: {'; '.join(each[:3])}")
        for source, each in whys.items()
    }


def reason(gaps: Iterable[Gap]) -> str:
    """Say what is gone, in one line."""
    told = [str(gap) for gap in gaps]
    more = f" and {len(told) - 3} partitions more" if len(told) > 3 else ""
    return f"gone from Kafka before they were read: {'; '.join(told[:3])}{more}"


def remedy(source: str) -> str:
    """Return the command that recovers a source."""
    return f"penstock source resnapshot {source} --yes"


def told(gaps: Mapping[str, Iterable[Gap]]) -> dict[str, str]:
    """Say per source what is gone and what recovers it, for health and logs."""
    return {name: f"{reason(each)} | fix: {remedy(name)}" for name, each in gaps.items()}


def skips_of(book: InstallBook) -> list[Skip]:
    """Return up to where reading may skip, in the order in which that was noted."""
    return [
        Skip(*skip) for entry in book.entries() if entry.kind == SKIP for skip in entry.detail[_KEY]
    ]


def next_offsets(
    read: ReadStanding, skips: Iterable[Skip], now: Mapping[str, TopicId]
) -> ReadStanding:
    """Return where reading goes on: behind what was read, or where a recovery let it skip to.

    `now` are the topics that Kafka has. A skip leads from one topic into the one that took its
    place once: what is read there is noted under the new id.
    """
    # Below 0 is what a broker that began said of partitions which nobody had read, and was noted.
    offsets = {t: {p: at for p, at in ps.items() if at >= 0} for t, ps in read.offsets.items()}
    topics = dict(read.topics)
    for skip in skips:
        at = offsets.get(skip.topic, {}).get(skip.partition)
        was, is_ = _id(read.topics, skip.topic), _id(now, skip.topic)
        if at is None or (skip.was and was != skip.was):
            continue
        if skip.was != skip.now:
            if is_ != skip.was and skip.now in ("", is_):
                _pass_into(skip, offsets, topics, now)
        elif skip.next <= at < skip.first or (at == skip.next and was == skip.was):
            # A place that has moved on since then has that gap behind it.
            offsets[skip.topic][skip.partition] = skip.first
    return ReadStanding(offsets=offsets, topics=topics)


def passed(skip: Skip, read: ReadStanding) -> bool:
    """Say whether reading has moved on from where a skip led back inside one topic."""
    at = read.offsets.get(skip.topic, {}).get(skip.partition)
    return skip.was == skip.now and skip.first <= skip.next and at not in (None, skip.next)


def _pass_into(
    skip: Skip,
    offsets: dict[str, dict[str, int]],
    topics: dict[str, TopicId],
    now: Mapping[str, TopicId],
) -> None:
    """Go on in the topic that took another's place; where there is none yet, from its beginning."""
    if skip.now:
        offsets[skip.topic][skip.partition] = skip.first
    else:
        del offsets[skip.topic][skip.partition]
    topics.pop(skip.topic, None)
    if skip.topic in now:
        topics[skip.topic] = now[skip.topic]


def gaps_of(
    going_on: ReadStanding, kept: KafkaContents, prefix: str, owners: Mapping[str, str] = NOBODY
) -> dict[str, list[Gap]]:
    """Return the gaps of each source, in the order of topic and partition; see `source_of`."""
    found: dict[str, list[Gap]] = {}
    for topic, places in sorted(going_on.offsets.items()):
        if topic not in kept.first and topic not in kept.gone:
            continue
        was, now = _id(going_on.topics, topic), _id(kept.topics, topic)
        if not (was and now) and topic not in kept.gone:
            was = now = ""
        for place, after in sorted(places.items()):
            first, end = (at.get(topic, {}).get(place) for at in (kept.first, kept.ends))
            if was == now and (first is None or end is None or first <= after <= end):
                continue
            gap = Gap(
                topic=topic,
                partition=place,
                next=after,
                first=first or 0,
                end=end or 0,
                was=was,
                now=now,
            )
            found.setdefault(source_of(topic, prefix, owners), []).append(gap)
    return found


def kept_by(
    topics: KafkaTopics,
    pattern: str,
    read: ReadStanding,
    captures: Mapping[str, Collection[str]],
    prefix: str,
    owners: Mapping[str, str] = NOBODY,
) -> KafkaContents:
    """Ask the broker for what it has of every topic that matches.

    The loss of a topic matters, unless it is that of a table that is captured no more: `captures`
    has the captured tables of each source, `prefix` is the workspace's. One of which the broker
    tells nothing just now is noted as that: see `silent_of`.
    """
    partitions = topics.matching(pattern)
    # The client may list a deleted topic a while longer, without partitions.
    expected = [t for t in read.topics if re.fullmatch(pattern, t) and not partitions.get(t)]
    silent = topics.silent({topic: partitions.get(topic, []) for topic in [*partitions, *expected]})
    partitions = {topic: places for topic, places in partitions.items() if topic not in silent}
    expected = [topic for topic in expected if topic not in silent]
    now = topics.ids([*partitions, *expected])
    return KafkaContents(
        first=topics.earliest(partitions),
        ends=topics.ends(partitions),
        topics={topic: now[topic] for topic in partitions if topic in now},
        gone=frozenset(
            topic
            for topic in expected
            if topic not in now and (topic in owners or _matters(topic, captures, prefix))
        ),
        silent=silent,
    )


def look(
    topics: KafkaTopics,
    pattern: str,
    last: Committed | None,
    book: InstallBook,
    captures: Mapping[str, Collection[str]],
    prefix: str,
    owners: Mapping[str, str] = NOBODY,
    *,
    bound: Bound | None = None,
) -> dict[str, list[Gap]]:
    """Ask the broker for the gaps of every topic that matches; also of an epoch that is `bound`.

    Raises `Unavailable` where it tells nothing of one of them.
    """
    read = standing_of(last, bound)
    kept = kept_by(topics, pattern, read, captures, prefix, owners)
    for error in silent_of(kept.silent, prefix, owners).values():
        raise error
    return gaps_of(next_offsets(read, skips_of(book), kept.topics), kept, prefix, owners)


def skip(book: InstallBook, source: str, gaps: Iterable[Gap]) -> int:
    """Note that reading may go on at the first records that Kafka has. Returns the row's number."""
    skips = [[gap.topic, gap.partition, gap.next, gap.first, gap.was, gap.now] for gap in gaps]
    entry = InstallEntry(kind=SKIP, id=source, source=source, detail={_KEY: skips})
    return book.put([entry])[0]


def standing_of(last: Committed | None, bound: Bound | None = None) -> ReadStanding:
    """Return up to where an epoch read, and which topics; one that is `bound` reads on from there.

    It may have topics that no epoch before read.
    """
    read = ReadStanding(
        offsets={} if last is None else last.end, topics={} if last is None else last.topics
    )
    if bound is None:
        return read
    return ReadStanding(
        offsets={
            topic: {**read.offsets.get(topic, {}), **bound.start.get(topic, {})}
            for topic in {**read.offsets, **bound.start}
        },
        topics={**read.topics, **bound.topics},
    )


def _matters(topic: str, captures: Mapping[str, Collection[str]], prefix: str) -> bool:
    source, _, table = topic.removeprefix(prefix).partition(".")
    # Only the topics of tables have a dot in their names: `<schema>.<table>`.
    return source == EVENTS or "." not in table or table in captures.get(source, ())


def _id(topics: Mapping[str, TopicId], name: str) -> str:
    return topics[name].id if name in topics else ""


def still_there(
    bound: Bound,
    last: Committed | None,
    skips: Iterable[Skip],
    topics: KafkaTopics,
    owned: tuple[str, Mapping[str, str]],
) -> tuple[Offsets, dict[str, Exception]]:
    """Return the offsets at which what is left of a bound epoch can be read again.

    Beside them the sources of which Kafka does not have the records any more, until a recovery
    lets it skip, or tells nothing just now, each with what says so: no offsets are of theirs.
    `owned` is what tells of a topic whose it is: see `source_of`.
    """
    silent = topics.silent({topic: [int(p) for p in at] for topic, at in bound.end.items()})
    asked = bound.end.keys() - silent.keys()
    now = topics.ids(asked)
    there = {topic: [int(p) for p in bound.end[topic]] for topic in now}
    gone = asked - now.keys()
    kept = KafkaContents(
        first=topics.earliest(there), ends=bound.end, topics=now, gone=frozenset(gone)
    )
    were = {**standing_of(last).topics, **bound.topics}
    start = next_offsets(ReadStanding(offsets=bound.start, topics=were), skips, now)
    allowed: dict[str, dict[str, int]] = {
        topic: dict(places)
        for topic, places in start.offsets.items()
        # Of a topic that another took the place of nothing can be read, after a recovery.
        if start.topics.get(topic) == were.get(topic)
    }
    gone_of = silent_of(silent, *owned)
    for source, lost in gaps_of(start, kept, *owned).items():
        for gap in lost:
            if gap.next < gap.end:
                gone_of[source] = Unavailable(
                    f"epoch {bound.epoch} of {source} is bound to records that are {reason(lost)}",
                    remedy=remedy(source),
                )
            # A recovery lets it skip further than this epoch goes: nothing of it is read.
            allowed[gap.topic][gap.partition] = gap.end
    unread = {
        topic: {p: at for p, at in places.items() if at < bound.end[topic][p]}
        for topic, places in allowed.items()
        if source_of(topic, *owned) not in gone_of
    }
    return {topic: places for topic, places in unread.items() if places}, gone_of
