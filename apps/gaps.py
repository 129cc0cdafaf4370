"""Records that Kafka no longer has, though ingest never read them.

A topic's retention may pass what ingest has still to read (the pipeline stood still for a week), or
somebody replaces the topic. Nothing can fill such a gap from Kafka. It is a named state of its
source, which stays out while the others go on, until `penstock source resnapshot`: that copies
the tables behind a new slot (or sends the event store's events again) and notes in the book of
installs up to where reading may skip.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from apps.topics import KafkaTopics
from kernel.positions import Offsets
from projections.state.installs import SKIP, Entry, InstallBook

EVENTS = "events"
OUTBOX = "outbox"
_KEY = "skips"


class Skip(NamedTuple):
    """Where reading stood, and the first record that Kafka had when the recovery was asked for."""

    topic: str
    partition: str
    next: int
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Offsets of one partition: ingest goes on at `next`, Kafka has `[first, end)`."""

    topic: str
    partition: str
    next: int
    first: int
    end: int

    def __str__(self) -> str:
        if self.next > self.end:
            return (
                f"{self.topic}/{self.partition} ends at {self.end}, but was read up to {self.next}:"
                " it is another topic now"
            )
        return f"{self.topic}/{self.partition} lacks {self.first - self.next} records"


def source_of(topic: str, prefix: str) -> str:
    """Return the source that a topic belongs to; the event store's is `outbox`."""
    name = topic.removeprefix(prefix).partition(".")[0]
    return OUTBOX if name == EVENTS else name


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


def next_offsets(read: Offsets, skips: Iterable[Skip]) -> dict[str, dict[str, int]]:
    """Return where reading goes on: behind what was read, or where a recovery let it skip to."""
    found = {topic: dict(places) for topic, places in read.items()}
    for skip in skips:
        at = found.get(skip.topic, {}).get(skip.partition)
        # A place that has moved on since then has that gap behind it.
        if at is not None and (at == skip.next or skip.next <= at < skip.first):
            found[skip.topic][skip.partition] = skip.first
    return found


def gaps_of(going_on: Offsets, first: Offsets, ends: Offsets, prefix: str) -> dict[str, list[Gap]]:
    """Return the gaps of each source, in the order of topic and partition."""
    found: dict[str, list[Gap]] = {}
    for topic, places in sorted(first.items()):
        for place, offset in sorted(places.items()):
            after, end = going_on.get(topic, {}).get(place), ends[topic][place]
            if after is not None and not offset <= after <= end:
                gap = Gap(topic=topic, partition=place, next=after, first=offset, end=end)
                found.setdefault(source_of(topic, prefix), []).append(gap)
    return found


def look(
    topics: KafkaTopics, pattern: str, read: Offsets, book: InstallBook, prefix: str
) -> dict[str, list[Gap]]:
    """Ask the broker for the gaps of every topic that matches."""
    partitions = topics.matching(pattern)
    first, ends = topics.earliest(partitions), topics.ends(partitions)
    return gaps_of(next_offsets(read, skips_of(book)), first, ends, prefix)


def skip(book: InstallBook, source: str, gaps: Iterable[Gap]) -> int:
    """Note that reading may go on at the first records that Kafka has. Returns the row's number."""
    skips = [[gap.topic, gap.partition, gap.next, gap.first] for gap in gaps]
    entry = Entry(kind=SKIP, id=source, source=source, detail={_KEY: skips})
    return book.put([entry])[0]
