"""Brings typed and history tables from one epoch to another, before projections read them.

The common cursor is the manifest's `typed` row. It only saves work: every table's own guard
decides what it still lacks, so that losing the row repeats nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from kernel import failpoints
from kernel.errors import NotFound
from kernel.positions import Epoch
from projections.log.datasets import schema_of
from projections.log.layout import Lake
from projections.log.tables import TableAt, Tables, greatest
from projections.log.typed import TypedTables
from projections.log.typed_columns import Visible
from projections.runner.catalog import DeployedCatalog
from projections.runner.manifest import Committed, Manifest, Projected
from projections.runner.progress import Progress
from projections.runner.views import DeltaFrames, Range
from projections.state.current import current_name
from projections.state.history import OWN_NAMES, HistoryOf, HistoryTables, outgrown
from projections.state.installing import generation_root
from projections.state.installs import Install, InstallBook
from projections.state.typed_installs import TypedInstalls

TYPED = "typed"
BOUNDED_BYTES = 32 * 2**20
"""Typed files up to this size give a change of a history that is committed from this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """All derived tables at one epoch, with their versions."""

    epoch: Epoch
    tables: Mapping[str, TableAt]


class DerivedTables:
    """Typed tables for all of the log, history tables for those that are asked for."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        manifest: Manifest,
        typed: TypedTables,
        history: HistoryTables,
        frames: DeltaFrames,
    ) -> None:
        self._lake = lake
        self._tables = tables
        self._manifest = manifest
        self._typed = typed
        self._history = history
        self._frames = frames
        self._copied = TypedInstalls(lake, tables)
        self._deployed = DeployedCatalog(lake, tables)
        self._book = InstallBook(lake, tables)
        self._brought: Brought | None = None

    def at(self) -> Brought:
        """Return how far typed tables have come. This object is their only writer."""
        if self._brought is not None:
            return self._brought
        run = self._manifest.projected().get(TYPED)
        return Brought(epoch=run.epoch if run else Epoch(0), tables=run.tables if run else {})

    def bring(self, before: Brought, up_to: Committed, histories: Sequence[HistoryOf]) -> Brought:
        """Append everything that became visible after `before` up to an epoch, then fold."""
        made = dict(before.tables)
        if up_to.epoch > before.epoch:
            made |= self._bring_typed(before, up_to)
            failpoints.hit(failpoints.TYPED_AFTER_APPEND)
        for history in histories:
            folded = self._fold(history, up_to.epoch)
            if folded is not None:
                made[history.name] = folded
                failpoints.hit(failpoints.HISTORY_AFTER_FOLD)
        made = {name: self._as_now(name, at) for name, at in made.items()}
        if made != dict(before.tables) or up_to.epoch > before.epoch:
            done = Projected(epoch=up_to.epoch, name=TYPED, tables=made)
            self._manifest.project(done)
        self._brought = Brought(epoch=up_to.epoch, tables=made)
        return self._brought

    def _bring_typed(self, before: Brought, up_to: Committed) -> dict[str, TableAt]:
        after = before.epoch
        epochs = self._manifest.between(after, up_to.epoch)
        start = self._manifest.at(after) if after else None
        made: dict[str, TableAt] = {}
        for store in up_to.heads:
            visible = Visible(
                start.heads.get(store, 0) if start else 0,
                [(e.epoch, e.heads.get(store, 0)) for e in epochs],
            )
            made |= self._typed.add_events(store, visible, up_to.epoch)
        progress = Progress.from_json(up_to.progress)
        held = Progress.from_json(start.progress).held if start else {}
        installs = self._installs(epochs)
        deployment = self._deployed.deployment() if installs else None
        for install, epoch in installs:
            assert deployment is not None, "there are installs"
            column = deployment.event_times(install.source).get(install.table)
            made |= self._copied.add(install, epoch, event_time=column)
        for source in up_to.cuts:
            visible = Visible(
                max(start.cuts.get(source, 0) if start else 0, _begun(source, installs)),
                [(e.epoch, e.cuts.get(source, 0)) for e in epochs],
            )
            made |= self._typed.add_changes(
                source,
                visible,
                up_to.epoch,
                pending_from=start.pending_from.get(source, 1) if start else 1,
                snapshot_lsn=progress.cut(source).snapshot_lsn,
                current=start.tables if start else {},
                brought=before.tables,
                held=held.get(source, {}),
                staged={
                    current_name(source, i.table): (generation_root(self._lake, i), i.version)
                    for i, _ in installs
                    if i.source == source
                },
            )
        return made

    def _as_now(self, name: str, at: TableAt) -> TableAt:
        """Return a table's newest version: a compaction makes one, and nobody keeps the old."""
        table = self._tables.open(self._lake.path(name))
        return at if table is None else replace(at, version=table.version())

    def _installs(self, epochs: Sequence[Committed]) -> list[tuple[Install, Epoch]]:
        """Return the installs that these epochs took in."""
        taken = {number: done.epoch for done in epochs for number in done.installs}
        if not taken:
            return []
        return [(i, taken[i.number]) for i in self._book.installs() if i.number in taken]

    def _fold(self, history: HistoryOf, epoch: Epoch) -> TableAt | None:
        """Fold what the history lacks. Its cursor is its own guard; a new one starts from 0."""
        path, typed = self._lake.path(history.name), self._lake.path(history.typed)
        stored, source = self._tables.open(path), self._tables.open(typed)
        done = (stored.transaction_version(history.name) if stored else None) or 0
        if source is None:
            return None
        truncates = self._lake.path(history.truncates) if history.truncates else None
        newest = max(self._newest(typed), self._newest(truncates) if truncates else 0)
        anew = stored is None or outgrown(schema_of(stored), schema_of(source))
        if newest <= done and not (anew and stored):
            version = stored.version() if stored else 0
            return TableAt(version=version, as_of_epoch=epoch) if stored else None
        after = 0 if anew else done
        within = Range(column="_epoch", lower=after + 1, upper=epoch + 1)
        incoming = self._frames.frame(typed, within)
        if incoming is None:
            raise NotFound(f"{history.typed} vanished while it was read")
        cleared = self._cleared(history, truncates, after, within) if truncates else None
        size = self._frames.bytes_of(typed, within)
        if cleared is not None:
            size += self._frames.bytes_of(path)
        return self._history.fold(
            history,
            incoming,
            None if anew else self._frames.frame(path, *self._near(history, within, cleared)),
            epoch,
            truncates=cleared,
            bounded=size <= BOUNDED_BYTES,
        )

    def _near(
        self, history: HistoryOf, within: Range, cleared: DataFrame | None
    ) -> tuple[Range, ...]:
        """Return the range of keys that came in, so that files without any of them are not read.

        Nothing where any key may be touched, or where keys are no integers.
        """
        name = history.key[0] if history.key else ""
        if history.by_row or cleared is not None or name in OWN_NAMES:
            return ()
        epoch = pc.field("_epoch")
        where = (epoch >= within.lower) & (epoch < within.upper)
        rows = self._tables.read(self._lake.path(history.typed), where=where, columns=[name])
        if rows is None or not rows.num_rows or not pa.types.is_integer(rows.schema[0].type):
            return ()
        bounds = pc.min_max(rows[name]).as_py()
        # Nothing is greater than the type's own greatest value, nor can be written in it.
        last = bounds["max"] == 2 ** (rows.schema[0].type.bit_width - 1) - 1
        upper = None if last else bounds["max"] + 1
        return (Range(column=name, lower=bounds["min"], upper=upper),)

    def _newest(self, path: str) -> int:
        table = self._tables.open(path)
        return (greatest(table, "_epoch") or 0) if table is not None else 0

    def _cleared(self, history: HistoryOf, path: str, done: int, within: Range) -> DataFrame | None:
        """Return the TRUNCATEs of a history's table; None where there are none."""
        if self._newest(path) <= done:
            return None
        frame = self._frames.frame(path, within)
        return frame.filter(frame["table"] == history.table) if frame is not None else None


def _begun(source: str, installs: Sequence[tuple[Install, Epoch]]) -> int:
    """Return where a source's typed rows begin, if they begin with a copy: what was before it is
    in the rows that were copied.
    """
    return min((i.lsn for i, _ in installs if i.source == source and i.releases), default=0)
