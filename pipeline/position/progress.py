"""What ingest remembers from one epoch to the next. It is stored in the epoch's manifest row.

Duplicates are dropped by what row E-1 says was seen, never by looking for the batch's own rows in
the log: a repeated batch would find itself there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernel.clock import micros
from pipeline.ddl.held_tables import Held, held_from_json, held_to_json
from pipeline.position.cut import Cut
from pipeline.position.intervals import IntervalSet
from schemas.identifiers import topic_part


class Mark(NamedTuple):
    """How far a topic partition was read: the place of its last change in its source's stream."""

    order: int
    lsn: int
    total: int
    transaction: str

    def beyond(self, before: Mark) -> bool:
        """Say whether a change here is new, and none that the connector sends once more.

        Within a transaction the LSN decides first: see `pipeline.order`.
        """
        if self.transaction == before.transaction or self.order == before.order:
            return (self.lsn, self.total) > (before.lsn, before.total)
        return self.order > before.order


NOWHERE = Mark(order=-1, lsn=-1, total=-1, transaction="")


Lateness = Callable[[str], timedelta]
"""Returns how late a row of an input may be, by the input's name (`events.flight`, a table)."""


@dataclass(slots=True)
class Watermarks:
    """Event time seen per input (a category or a table) and topic partition.

    The watermark of an input is the least over its partitions of the greatest event time seen:
    a partition that is read ahead of another must not make the other's rows look late. While a
    partition has given nothing yet there is no watermark, and nothing is late.

    A time beyond `latest`, which is of the epoch at hand and not kept, moves nothing: one row of
    the year 9999 would have all others of its input late for ever.
    """

    seen: dict[str, dict[str, int]] = field(default_factory=dict)
    partitions: dict[str, int] = field(default_factory=dict)
    latest: int | None = None

    def believe(self, latest: int) -> None:
        """Let no time beyond `latest` move a mark, and forget marks that such a time moved.

        A partition without its mark counts as one that was not heard of: nothing is late until it
        brings a row. The verdicts on rows that came before are kept with them, and stand.
        """
        self.latest = latest
        for places in self.seen.values():
            for place in [place for place, mark in places.items() if mark > latest]:
                del places[place]

    def note(self, name: str, place: str, event_time_us: int, *, partitions: int) -> int:
        """Take note of a row's event time, in microseconds since 1970 UTC.

        `partitions` is the number that the input's topic has. Returns 1 for a time that is too far
        ahead to be believed, else 0.
        """
        self.partitions[name] = partitions
        places = self.seen.setdefault(name, {})
        if self.latest is not None and event_time_us > self.latest:
            return 1
        if event_time_us > places.get(place, event_time_us - 1):
            places[place] = event_time_us
        return 0

    def note_all(
        self, name: str, place: str, event_times_us: npt.NDArray[np.int64], *, partitions: int
    ) -> int:
        """Take note of many rows' event times at once; return how many are too far ahead."""
        limit = self.latest
        believed = event_times_us if limit is None else event_times_us[event_times_us <= limit]
        newest = believed if len(believed) else event_times_us
        self.note(name, place, int(newest.max()), partitions=partitions)
        return len(event_times_us) - len(believed)

    def of(self, name: str) -> int | None:
        """Return the watermark in microseconds; None before every partition was heard of."""
        places = self.seen.get(name)
        if not places or len(places) < self.partitions.get(name, 1):
            return None
        return min(places.values())

    def late(self, name: str, event_time_us: int, lateness: timedelta) -> bool:
        """Say whether a row comes later than `lateness` after its input's watermark."""
        mark = self.of(name)
        return mark is not None and event_time_us < _first_in_time(mark, lateness)

    def limits(self, lateness: Lateness) -> dict[str, tuple[int, int]]:
        """Return the watermark of each input that has one, and the first time that is not late.

        Both are in microseconds. That is all that others need to judge the inputs' rows.
        """
        marks = {name: self.of(name) for name in self.seen}
        return {
            name: (mark, _first_in_time(mark, lateness(name)))
            for name, mark in marks.items()
            if mark is not None
        }

    def late_ones(
        self, name: str, event_times_us: npt.NDArray[np.int64], lateness: timedelta
    ) -> npt.NDArray[np.bool_]:
        """Say of many rows at once whether they come late; see `late`."""
        mark = self.of(name)
        if mark is None:
            return np.zeros(len(event_times_us), bool)
        return event_times_us < _first_in_time(mark, lateness)


def _first_in_time(mark: int, lateness: timedelta) -> int:
    return mark - lateness // timedelta(microseconds=1)


@dataclass(slots=True, kw_only=True)
class Quarantined:
    """The records of one topic that wait in quarantine: how many, and about the newest of them.

    `source` and `table` are those of `schemas.records.Rejected`; `at` is when the newest came, in
    microseconds since 1970 UTC.
    """

    source: str | None
    table: str | None
    records: int = 0
    at: int = 0
    reason: str = ""


@dataclass(slots=True)
class Progress:
    """Everything carried over: marks, positions, cuts, watermarks, announcements, held tables.

    `installs` are the numbers of announcements that were taken in, `declined` those among them
    that could not be installed, with the reason. `quarantine` has the topics of which records wait
    there. `positions` are those of events, and those that records in quarantine name; of the
    latter, `refused` has the ones of which no event has come. `resting` are sources whose cut stays
    while what is complete up to an LSN is folded beside ingest.
    """

    marks: dict[str, Mark] = field(default_factory=dict)
    positions: dict[str, IntervalSet] = field(default_factory=dict)
    refused: dict[str, IntervalSet] = field(default_factory=dict)
    cuts: dict[str, Cut] = field(default_factory=dict)
    watermarks: Watermarks = field(default_factory=Watermarks)
    installs: IntervalSet = field(default_factory=IntervalSet)
    declined: dict[str, str] = field(default_factory=dict)
    held: Held = field(default_factory=dict)
    quarantine: dict[str, Quarantined] = field(default_factory=dict)
    resting: dict[str, int] = field(default_factory=dict)

    def copy(self, *, ahead: timedelta | None = None) -> Progress:
        """Return an independent copy: an epoch works on it and fails without a trace.

        Event times further `ahead` of the clock than that move no watermark, and such a one that
        moved it before is forgotten.
        """
        found = Progress.from_json(self.to_json())
        if ahead is not None:
            found.watermarks.believe(micros(datetime.now(UTC) + ahead))
        return found

    def accept_change(self, place: str, mark: Mark) -> Mark | None:
        """Advance the high-water mark of a topic partition; None for what it has passed.

        Returns the change's place. All changes of a transaction have the same `commit_order` at
        least: a connector that starts again may have forgotten a message of another application
        that came after the last commit.
        """
        before = self.marks.get(place, NOWHERE)
        if not mark.beyond(before):
            return None
        if mark.transaction == before.transaction and mark.order < before.order:
            mark = mark._replace(order=before.order)
        self.marks[place] = mark
        return mark

    def quarantined(
        self, topic: str, source: str | None, table: str | None, reason: str, *, at: int
    ) -> None:
        """Take note of a record that goes to quarantine."""
        kept = self.quarantine.setdefault(topic, Quarantined(source=source, table=table))
        kept.records, kept.at, kept.reason = kept.records + 1, at, reason[:400]
        if source is not None and table is not None:
            self.cut(source).shortfalls.quarantined(table)

    def decided(self, topic: str) -> None:
        """Take note of a record that does not wait in quarantine any more."""
        kept = self.quarantine.get(topic)
        if kept is not None:
            kept.records -= 1
            if kept.records <= 0:
                del self.quarantine[topic]

    def poisoned(self) -> dict[str, str]:
        """Return the topic, per source, of which records in quarantine hold its cut."""
        parts = {source: cut.poisoned() for source, cut in self.cuts.items()}
        return {
            quarantined.source: topic
            for topic, quarantined in self.quarantine.items()
            if quarantined.source is not None
            and quarantined.table == parts.get(quarantined.source, "")
        }

    def waits(self, source: str, table: str) -> Quarantined | None:
        """Return what waits in quarantine of a captured table."""
        part = topic_part(table)
        found = (q for q in self.quarantine.values() if (q.source, q.table) == (source, part))
        return next(found, None)

    def accept_position(self, store: str, position: int) -> bool:
        """Take note of an event's position; False for one that had its event before."""
        if store in self.refused and self.refused[store].remove(position):
            return True
        return self.positions.setdefault(store, IntervalSet()).add(position)

    def accept_positions(self, store: str, positions: npt.NDArray[np.int64]) -> bool:
        """Take note of many events, in the order of their positions, if all are new."""
        if store in self.refused and self.refused[store].has_any(positions):
            return False
        return self.positions.setdefault(store, IntervalSet()).add_all(positions)

    def refuse_position(self, store: str, position: int) -> None:
        """Take note of a position that a record in quarantine names: it is no hole any more.

        The event itself may still come: anybody can write a record that names its position.
        """
        if self.positions.setdefault(store, IntervalSet()).add(position):
            self.refused.setdefault(store, IntervalSet()).add(position)

    def had_event(self, store: str, position: int) -> bool:
        """Say whether the event of a position has come, and not only a record that names it."""
        had, refused = self.positions.get(store), self.refused.get(store)
        return had is not None and position in had and (refused is None or position not in refused)

    def head(self, store: str) -> int:
        """Return the contiguous head: every position up to it has been seen."""
        return self.positions[store].head if store in self.positions else 0

    def cut(self, source: str) -> Cut:
        """Return the cut of a source, made if need be."""
        return self.cuts.setdefault(source, Cut())

    def to_json(self) -> str:
        """Return the form in which the manifest keeps it."""
        return json.dumps(
            {
                "marks": {place: list(mark) for place, mark in self.marks.items()},
                "positions": _ranges(self.positions),
                "refused": _ranges({store: s for store, s in self.refused.items() if len(s)}),
                "cuts": {source: cut.to_json() for source, cut in self.cuts.items()},
                "watermarks": self.watermarks.seen,
                "partitions": self.watermarks.partitions,
                "installs": self.installs.ranges(),
                "declined": self.declined,
                "held": held_to_json(self.held),
                "quarantine": {topic: asdict(q) for topic, q in self.quarantine.items()},
                "resting": self.resting,
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> Progress:
        """Restore what `to_json` gave."""
        kept: Mapping[str, Mapping[str, object]] = json.loads(text)
        return cls(
            marks={place: _mark(mark) for place, mark in kept["marks"].items()},
            positions={store: _intervals(r) for store, r in kept["positions"].items()},
            refused={store: _intervals(r) for store, r in kept.get("refused", {}).items()},
            cuts={source: _cut(cut) for source, cut in kept["cuts"].items()},
            watermarks=Watermarks(
                seen={name: _numbers(places) for name, places in kept["watermarks"].items()},
                partitions=_numbers(kept["partitions"]),
            ),
            installs=_intervals(kept.get("installs", [])),
            declined={str(k): str(v) for k, v in kept.get("declined", {}).items()},
            held=held_from_json(kept.get("held")),
            quarantine={t: _quarantined(q) for t, q in kept.get("quarantine", {}).items()},
            resting=_numbers(kept.get("resting", {})),
        )


def _ranges(positions: Mapping[str, IntervalSet]) -> dict[str, list[list[int]]]:
    return {store: seen.ranges() for store, seen in positions.items()}


def _numbers(kept: object) -> dict[str, int]:
    match kept:
        case dict():
            return {str(name): int(number) for name, number in kept.items()}
    raise ValueError(f"not numbers by name: {kept!r}")


def _mark(kept: object) -> Mark:
    match kept:
        case [int(order), int(lsn), int(total), str(transaction)]:
            return Mark(order, lsn, total, transaction)
        case [int(order), int(total)]:
            # Manifests of before LSNs were compared.
            return Mark(order, -1, total, "")
    raise ValueError(f"not a mark: {kept!r}")


def _quarantined(kept: object) -> Quarantined:
    match kept:
        case dict():
            return Quarantined(**kept)
    raise ValueError(f"not records in quarantine: {kept!r}")


def _intervals(kept: object) -> IntervalSet:
    match kept:
        case list():
            return IntervalSet(kept)
    raise ValueError(f"not ranges: {kept!r}")


def _cut(kept: object) -> Cut:
    match kept:
        case dict():
            return Cut.from_json(kept)
    raise ValueError(f"not a cut: {kept!r}")
