"""Which events a replay takes, read from a store's log part by part, and what they are in all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import NotFound
from replay.elsewhere.pace import AtOnce, Pace, Schedule
from schemas.logged_event import event_of_row
from schemas.records import RecordedEvent

_TOGETHER = 1_000
"""Events that are objects at the same time: one takes a kilobyte, beside its data."""
_TIMES = ("recorded_at", "occurred_at")
_KNOWN_BY = ("position", "stream", "store_id", "event_id")
_TOLD = ("position", "stream", *_TIMES)


class EventParts(Protocol):
    """A store's events by position, as Arrow tables of some thousand rows."""

    def parts(
        self,
        *,
        after: int = 0,
        up_to: int | None = None,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Yield the events behind a position that satisfy `where`, ascending.

        Raises `Incompatible` where a position is missing, whichever are asked for.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """A range of positions and of recorded times, cut to some categories and streams.

    `since` belongs to it, `until` does not; positions are in `(after, up_to]`. Without categories
    and streams all are taken, with both those of either. `but_ending`: streams whose names end so
    are left out, and counted.
    """

    up_to: int
    after: int = 0
    since: datetime | None = None
    until: datetime | None = None
    categories: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    but_ending: str | None = None

    @property
    def told(self) -> dict[str, object]:
        """What makes a selection the same one: all but its end, as JSON has it."""
        return {
            "after": self.after,
            "since": None if self.since is None else self.since.isoformat(),
            "categories": sorted(self.categories),
            "streams": sorted(self.streams),
        }

    @property
    def where(self) -> pc.Expression | None:
        """The condition on rows, None for all of them; `but_ending` aside."""
        found: list[pc.Expression] = []
        if self.since is not None:
            found.append(pc.field("recorded_at") >= _moment(self.since))
        if self.until is not None:
            found.append(pc.field("recorded_at") < _moment(self.until))
        if self.categories or self.streams:
            category = pc.field("category").isin(pa.array(self.categories, pa.string()))
            stream = pc.field("stream").isin(pa.array(self.streams, pa.string()))
            found.append(category | stream)
        whole: pc.Expression | None = None
        for each in found:
            whole = each if whole is None else whole & each
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a selection is, before anything is sent: `events` from `first` to `last`.

    `recorded`, `occurred`: the least and the greatest time. `seconds`: how long the pace makes it
    last. `left_out`: how many of streams that end as they must not.
    """

    events: int
    first: int
    last: int
    recorded: tuple[datetime, datetime]
    occurred: tuple[datetime, datetime]
    seconds: float
    left_out: int


class Identity(NamedTuple):
    """What an event is known by."""

    store_id: str
    position: int
    id: UUID


class SelectedEvents:
    """The events of a selection."""

    def __init__(self, parts: EventParts, selection: Selection) -> None:
        self._parts = parts
        self.selection = selection

    def after(self, position: int) -> Iterator[RecordedEvent]:
        """Yield the selected events behind a position, ascending."""
        for part in self._read(position):
            for rows in self._taken(part).to_batches(max_chunksize=_TOGETHER):
                for row in rows.to_pylist():
                    yield event_of_row(row)

    def first_behind(self, position: int) -> Identity | None:
        """Return what the first selected event behind a position is known by."""
        for part in self._read(position, _KNOWN_BY):
            for row in self._taken(part).slice(0, 1).to_pylist():
                return Identity(row["store_id"], row["position"], UUID(row["event_id"]))
        return None

    def survey(self, pace: Pace | None = None, *, after: int = 0) -> Survey:
        """Look through those behind a position. Raises `NotFound` where there are none."""
        schedule = Schedule(pace or AtOnce())
        ends: list[pa.Table] = []
        events = left_out = 0
        seconds = 0.0
        for part in self._read(after, _TOLD):
            taken = self._taken(part)
            left_out += part.num_rows - taken.num_rows
            if not taken.num_rows:
                continue
            events += taken.num_rows
            ends.append(_ends_of(taken))
            if pace is not None:
                times = zip(*(taken[name].to_pylist() for name in _TIMES), strict=True)
                for recorded_at, occurred_at in times:
                    seconds = schedule.due(recorded_at, occurred_at)
        if not events:
            raise NotFound(
                f"no event of the log is selected up to position {self.selection.up_to}",
                remedy="See what there is: penstock stream categories; penstock read --limit 5",
            )
        bounds = pa.concat_tables(ends)
        first, last = _bounds(bounds, "position")
        return Survey(
            events=events,
            first=first,
            last=last,
            recorded=_bounds(bounds, "recorded_at"),
            occurred=_bounds(bounds, "occurred_at"),
            seconds=seconds,
            left_out=left_out,
        )

    def _read(self, after: int, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        chosen = self.selection
        return self._parts.parts(
            after=max(after, chosen.after),
            up_to=chosen.up_to,
            where=chosen.where,
            columns=columns,
        )

    def _taken(self, part: pa.Table) -> pa.Table:
        ending = self.selection.but_ending
        if ending is None:
            return part
        return part.filter(pc.invert(pc.ends_with(part["stream"], ending)))


def _ends_of(part: pa.Table) -> pa.Table:
    """Return the least and the greatest of each bounded column, as two rows."""
    names = ("position", *_TIMES)
    found = [pc.min_max(part[name]) for name in names]
    arrays = [pa.array([each["min"].as_py(), each["max"].as_py()]) for each in found]
    return pa.table(arrays, names=list(names))


def _bounds(ends: pa.Table, name: str) -> tuple[Any, Any]:
    values = ends[name].to_pylist()
    return min(values), max(values)


def _moment(at: datetime) -> pa.Scalar:
    return pa.scalar(at.astimezone(UTC), pa.timestamp("us", "UTC"))
