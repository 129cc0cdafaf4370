"""One projection whose changes are sent to an outlet, each once: a topic, or the event store.

1. Look which version the table has, and where the last transaction says that the outlet is. Where
   it says nothing, all rows of that version are the first changes.
2. Read the changes behind that place, version by version, a bounded number at a time.
3. Send them and the place behind them.

What the outlet does in 3 decides what a crash leaves: see there. Whoever starts next goes on from
the place, and makes the same records in the same order up to the next one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from deltalake import DeltaTable

from kernel.errors import Conflict, Incompatible, NotFound
from kernel.positions import DeltaVersion, Epoch, TopicId
from projections.serve.feed_places import FeedPlace
from projections.serve.lake_tables import rows_in
from projections.serve.newest_runs import WatchedTable
from projections.serve.table_steps import Changes, TableSteps
from projections.sinks.first_runs import has_run
from projections.sinks.sink_transactions import SinkCursor

_MOST_RECORDS, _MOST_BYTES = 5_000, 16 * 2**20
"""Of one step; one more batch of rows may come on top."""
_LOOK_S = 10.0
_KEPT_S = 3_600.0
"""A place that moved on without records is written down after so long: versions are not kept for
ever."""


class Sized(Protocol):
    """A record of an outlet."""

    @property
    def nbytes(self) -> int:
        """About how large it is."""
        ...


Record = TypeVar("Record", bound=Sized)


class Outlet(Protocol[Record]):
    """Takes the changes of one projection. For one thread; made anew after an error.

    `name` is what places are kept under, `title` what messages call it. `another` says how rows
    begin anew elsewhere, `anew` what else helps where it has rows of another table.

    `repeats`: what was sent may be there without its place, and is known by its version when it is
    sent again. So the version to begin with is written down before its rows are sent.
    """

    name: str
    title: str
    another: str
    anew: str
    repeats: bool

    def found(self) -> TopicId:
        """Return what it is now, made where it was missing. Another id has nothing yet."""
        ...

    def check(self, found: TopicId, had: int | None) -> None:
        """Raise what speaks against sending. `had`: partitions when rows were sent before."""
        ...

    def records(self, changes: Changes) -> Sequence[Record]:
        """Return the records of some changes, in their order."""
        ...

    def send(self, records: Sequence[Record], cursor: SinkCursor) -> None:
        """Send records, and keep the place behind them."""
        ...


@dataclass(slots=True, kw_only=True)
class SinkState:
    """What the status shows of a sink: the version that it has sent, and what waits.

    `rows` is how many the table has: alerts that are raised, where each is one.
    """

    target: str
    version: int | None = None
    newest: int | None = None
    epoch: int | None = None
    records: int = 0
    rows: int = 0
    lag_s: float = 0.0
    error: str | None = None


class ProjectionSink(Generic[Record]):
    """Brings one outlet up to one projection's table. After an error it is made anew."""

    def __init__(
        self,
        *,
        outlet: Outlet[Record],
        key: tuple[str, ...],
        steps: TableSteps,
        projection: str,
        cursor: SinkCursor | None,
        target: str,
    ) -> None:
        self._outlet = outlet
        self._key = key
        self._steps = steps
        self._projection = projection
        self._known = cursor
        self._table = WatchedTable(steps.path)
        self._changes: Iterator[Changes] | None = None
        self._found: TopicId | None = None
        self._looked_at = 0.0
        self._behind_since: float | None = None
        self._kept_at = time.monotonic()
        self._cursor: SinkCursor | None = None
        self._of_generation: int | None = None
        self.state = SinkState(target=target)

    def step(self, generation: int) -> bool:
        """Send the next changes, if there are any; return whether there were.

        `generation`: the live one, without a run of which the table has nothing to send.
        """
        self._table.moved()
        if self._table.table is None:
            return False  # Its first run is to come.
        if self._of_generation != generation:
            if not has_run(self._table.table, self._projection, generation):
                return False  # So it is here: the rows are those of what was dropped.
            self._of_generation = generation
        found = self._look()
        newest = DeltaVersion(self._table.table.version())
        if self._cursor is None and self._outlet.repeats:
            self._start(newest, found)
        place = None if self._cursor is None else self._cursor.place
        if place is not None and place.version > newest:
            raise self._of_another_table()
        if self._changes is None:
            self._changes = self._steps.after(place, newest, self._key)
        try:
            records, last = self._next_records()
        except NotFound as error:
            raise NotFound(error.message, remedy=f"{self._outlet.another}.") from error
        if last is not None:
            self._sent(records, last, found)
        self._tell(self._table.table, newest)
        return last is not None

    def _start(self, newest: DeltaVersion, found: TopicId) -> None:
        """Write down which version comes first, so that a crash amid it does not change that."""
        place = FeedPlace(table_id=self._steps.table_id, version=newest, epoch=Epoch(0), done=0)
        cursor = self._cursor_at(place, 0, found)
        self._outlet.send([], cursor)
        self._cursor = cursor

    def _next_records(self) -> tuple[list[Record], Changes | None]:
        assert self._changes is not None
        records: list[Record] = []
        size, last = 0, None
        for changes in self._changes:
            made = self._outlet.records(changes)
            records, last, size = [*records, *made], changes, size + sum(r.nbytes for r in made)
            if len(records) >= _MOST_RECORDS or size >= _MOST_BYTES:
                return records, last
        self._changes = None
        return records, last

    def _sent(self, records: Sequence[Record], last: Changes, found: TopicId) -> None:
        before = 0 if self._cursor is None else self._cursor.records
        cursor = self._cursor_at(last.behind, before + len(records), found)
        if records or time.monotonic() - self._kept_at > _KEPT_S:
            self._outlet.send(records, cursor)
            self._kept_at = time.monotonic()
        self._cursor = cursor
        if last.epoch is not None:
            self.state.epoch = last.epoch

    def _cursor_at(self, place: FeedPlace, records: int, found: TopicId) -> SinkCursor:
        return SinkCursor(
            projection=self._projection,
            topic=self._outlet.name,
            topic_id=found.id,
            place=place,
            records=records,
            key=self._key,
            partitions=found.partitions,
        )

    def _look(self) -> TopicId:
        """See whether the outlet is the one of before: another one has nothing, and gets all rows.

        Raises what the outlet has against it, `Conflict` and `Incompatible` for rows of before.
        """
        now = time.monotonic()
        if self._found is not None and now - self._looked_at < _LOOK_S:
            return self._found
        found = self._outlet.found()
        if self._found is None or found.id != self._found.id:
            self._begin(found)
        self._outlet.check(found, None if self._cursor is None else self._cursor.partitions)
        self._found, self._looked_at = found, now
        return found

    def _begin(self, found: TopicId) -> None:
        """Go on where the last transaction for this very outlet ended."""
        self._changes, self._cursor = None, None
        known = self._known
        if known is None or known.topic_id != found.id:
            return
        if known.place.table_id != self._steps.table_id:
            raise self._of_another_table()
        if known.key is not None and known.key != self._key:
            raise Incompatible(
                f"{self._outlet.title} has records by the key {', '.join(known.key)}, and "
                f"the key of {self._projection} is {', '.join(self._key)}",
                remedy=f"{self._outlet.another}: penstock projection apply FILE.sql",
            )
        self._cursor = replace(known, partitions=known.partitions or found.partitions)

    def _of_another_table(self) -> Conflict:
        return Conflict(
            f"{self._outlet.title} has the changes of a table that was here before: what "
            "it has too much is not known",
            remedy=self._outlet.anew,
        )

    def _tell(self, table: DeltaTable, newest: DeltaVersion) -> None:
        place = None if self._cursor is None else self._cursor.place
        whole = place is not None and place.done is None and place.version >= newest
        now = time.monotonic()
        self._behind_since = None if whole else (self._behind_since or now)
        self.state.lag_s = 0.0 if self._behind_since is None else now - self._behind_since
        if self.state.newest != newest:
            self.state.rows = rows_in(table)
        self.state.newest = newest
        # Amid the rows of a first version, nothing of it counts as sent yet.
        begun = place is not None and (place.done is None or place.towards is not None)
        self.state.version = place.version if place is not None and begun else None
        self.state.records = 0 if self._cursor is None else self._cursor.records
