"""The changes of a projection's table version by version, for one who has to miss none.

    place -> all rows of a version, or the differences to the next version -> Changes, each with the
    place behind it

A feed that skips versions tells what is different in the end. Here each version that changed rows
is a step of its own, as long as the table's log keeps it; what is not kept is told together with
what came after. A swap of generations and a rollback are such versions, too, and give what differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from deltalake import DeltaTable

from kernel.errors import Incompatible
from kernel.positions import CLOSED, DeltaVersion, Epoch
from lake.table_commits import TableCommit, commit_at
from projections.serve.feed_places import FeedPlace
from projections.serve.keyed_rows import visible
from projections.serve.row_changes import ReadRows, RowChange, all_new, difference
from projections.serve.versions import opened, readable

NOTHING = pa.schema([])
_RUN = re.compile(r"projection/.+/g(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Some changes of one version, and the place behind them.

    `columns` are those of the version that they lead to. `epoch` and `generation` are those under
    which it was written, None where no run wrote it; `at` is when, None where that is not kept.

    `fresh`: a run of the generation that was the table already wrote it. All rows of a first look,
    a swap, a rollback and the first run of a projection that was declared again are not: they tell
    what was so before, computed anew.
    """

    rows: list[RowChange]
    behind: FeedPlace
    columns: pa.Schema
    epoch: Epoch | None
    generation: int | None
    at: datetime | None = None
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The way from version `before` to `version`, and the run that made it."""

    before: DeltaVersion
    version: DeltaVersion
    app: str | None = None
    epoch: Epoch | None = None
    generation: int | None = None
    at: datetime | None = None

    def goes_on_from(self, before: DeltaTable) -> bool:
        """Say whether the run's generation was the table before; a closed one was not."""
        return self.app is not None and before.transaction_version(self.app) not in (None, CLOSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSteps:
    """Reads one projection's table at `path`. `read` makes values of rows.

    Two versions of which the files that differ take more than `most_bytes` are not compared.
    """

    name: str
    path: str
    table_id: str
    read: ReadRows
    most_bytes: int

    def after(
        self, place: FeedPlace | None, newest: DeltaVersion, key: tuple[str, ...]
    ) -> Iterator[Changes]:
        """Yield what a follower at a place lacks of the next version that it has to have.

        None is the place of one who has nothing: all rows of the newest version come. The last of
        what is yielded has no rows where the version is the same to readers. Raises `NotFound` for
        a version that is not kept, `Incompatible` for two that cannot be compared.
        """
        if place is None:
            place = FeedPlace(table_id=self.table_id, version=newest, epoch=Epoch(0), done=0)
        if place.towards is None and place.done is not None:
            yield from self._all(place, place.done, key)
            return
        step = self._next(place, newest)
        if step is not None:
            yield from self._differences(place, step, key)
        elif newest > place.version:
            whole = FeedPlace(table_id=self.table_id, version=newest)
            yield Changes(rows=[], behind=whole, columns=NOTHING, epoch=None, generation=None)

    def _all(self, place: FeedPlace, done: int, key: tuple[str, ...]) -> Iterator[Changes]:
        table = self._opened(place.version)
        wrote = self._step(place.version)
        with readable(self.name, place.version):
            for rows in all_new(table, key, done, self.read):
                done += len(rows)
                yield _changes(rows, replace(place, done=done), table, wrote)
        whole = FeedPlace(table_id=self.table_id, version=place.version)
        yield _changes([], whole, table, wrote)

    def _next(self, place: FeedPlace, newest: DeltaVersion) -> _Step | None:
        """Return the next version that may have other rows; None where there is none.

        Versions that are skipped rewrote rows as they were: the one before it has the same rows as
        the place has, in the files that it went on from.
        """
        if place.towards is not None:
            return replace(self._step(place.towards), before=place.version)
        for number in range(place.version + 1, newest + 1):
            commit = commit_at(self.path, number)
            if commit is None:
                return replace(self._step(newest), before=place.version)
            if commit.changes_rows:
                return _written(DeltaVersion(number), commit)
        return None

    def _step(self, version: DeltaVersion) -> _Step:
        return _written(version, commit_at(self.path, version))

    def _differences(
        self, place: FeedPlace, step: _Step, key: tuple[str, ...]
    ) -> Iterator[Changes]:
        before, after = self._opened(step.before), self._opened(step.version)
        with readable(self.name, step.version):
            found = difference(before, after, key, self.most_bytes)
        if found is None:
            raise Incompatible(
                f"versions {step.before} and {step.version} of {self.name} cannot be compared: "
                "they have other keys, or what differs does not fit into memory",
                remedy="Raise pipeline.state_memory_bytes and restart the pipeline, or declare "
                "another topic as the sink, which gets all rows.",
            )
        done, fresh = place.done or 0, step.goes_on_from(before)
        amid = FeedPlace(
            table_id=self.table_id,
            version=step.before,
            towards=step.version,
            epoch=step.epoch or Epoch(0),
        )
        for rows in found.after(done, self.read):
            done += len(rows)
            yield _changes(rows, replace(amid, done=done), after, step, fresh=fresh)
        whole = FeedPlace(table_id=self.table_id, version=step.version)
        yield _changes([], whole, after, step, fresh=fresh)

    def _opened(self, version: DeltaVersion) -> DeltaTable:
        return opened(self.path, self.name, version)


def _changes(
    rows: list[RowChange],
    behind: FeedPlace,
    table: DeltaTable,
    wrote: _Step,
    *,
    fresh: bool = False,
) -> Changes:
    return Changes(
        rows=rows,
        behind=behind,
        columns=visible(table),
        epoch=wrote.epoch,
        generation=wrote.generation,
        at=wrote.at,
        fresh=fresh,
    )


def _written(version: DeltaVersion, commit: TableCommit | None) -> _Step:
    """Return whose run wrote a version. A swap closes the old generation: its cursor is far off."""
    before = DeltaVersion(version - 1)
    if commit is None:
        return _Step(before=before, version=version)
    runs = [
        (epoch, app, found[1])
        for app, epoch in commit.guards.items()
        if (found := _RUN.fullmatch(app))
    ]
    if not runs:
        return _Step(before=before, version=version, at=commit.at)
    epoch, app, generation = min(runs)
    return _Step(
        before=before,
        version=version,
        app=app,
        epoch=Epoch(epoch),
        generation=int(generation),
        at=commit.at,
    )
