"""Brings typed tables of the log from one epoch to another: what became visible, in one step.

The pipeline does so behind every epoch, a replay from the first one on. Every table's own guard
decides what it still lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.layout import Lake, current_name
from lake.tables import TableAt, Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import Committed
from pipeline.installs.install_book import Install, InstallBook
from pipeline.installs.installation import generation_root
from pipeline.position.progress import Progress
from pipeline.typed.columns import Visible, Wanted
from pipeline.typed.installs import Entering, TypedInstalls
from pipeline.typed.tables import TypedTables
from projections.run.catalog import DeployedCatalog
from projections.run.copied_over import copied_over
from projections.run.derived_holds import covered

LATE_EVENTS = ("released", "reclaimed")
"""What an epoch counts that may have logged events of positions that readers have passed."""


class TypedSteps:
    """Steps of the typed tables of one lake's log. They write to where `typed` writes.

    `anew`: for tables of which nothing is there; copies that were taken in by epochs that the
    manifest has forgotten count as the first one's that it knows.
    """

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        manifest: Manifest,
        typed: TypedTables,
        *,
        anew: bool = False,
    ) -> None:
        self._anew = anew
        self._lake = lake
        self._manifest = manifest
        self._typed = typed
        self._copied = TypedInstalls(lake, tables)
        self._deployed = DeployedCatalog(lake, tables)
        self._book = InstallBook(lake, tables)

    def bring(
        self,
        attempts: Attempts,
        before: Mapping[str, TableAt],
        after: Epoch,
        up_to: Committed,
        wanted: Wanted,
    ) -> None:
        """Append what became visible behind an epoch, up to another one, to tables `wanted`.

        `before`: the versions of typed tables before it. `attempts` takes what is done and fails.
        """
        epochs = self._manifest.between(after, up_to.epoch)
        start = self._manifest.at(after) if after else None
        for store in up_to.heads:
            visible = Visible(
                start.heads.get(store, 0) if start else 0,
                [(e.epoch, e.heads.get(store, 0)) for e in epochs],
            )
            with attempts.of("typed/events"):
                late = any(e.counts.get(what) for e in epochs for what in LATE_EVENTS)
                found = self._typed.add_events(
                    store, visible, up_to.epoch, wanted=wanted, late=late
                )
                attempts.take(found)
        progress = Progress.from_json(up_to.progress)
        installs = self._installs(epochs, forgotten=self._anew and start is None)
        known = [*([start] if start else []), *epochs]
        entering = self._entering(installs, start.cuts if start else {}, wanted)
        for source in up_to.cuts:
            visible = Visible(
                start.cuts.get(source, 0) if start else 0,
                [(e.epoch, e.cuts.get(source, 0)) for e in epochs],
                copied_over(source, installs, known, self._book.entries()) if installs else (),
            )
            with attempts.of(f"typed/{source}"):
                found = self._typed.add_changes(
                    source,
                    visible,
                    up_to.epoch,
                    pending_from=start.pending_from.get(source, 1) if start else 1,
                    snapshot_lsn=progress.cut(source).snapshot_lsn,
                    current=start.tables if start else {},
                    brought=before,
                    held=Progress.from_json(start.progress).held.get(source, {}) if start else {},
                    staged=self._staged(source, installs),
                    entering=entering,
                    wanted=wanted,
                )
                attempts.take(found)
        for name, each in entering.items():
            if name not in attempts.done and not covered(name, attempts.failed):
                with attempts.of(name):
                    attempts.done[name] = each.enter()

    def _entering(
        self, installs: Sequence[tuple[Install, Epoch]], cuts: Mapping[str, int], wanted: Wanted
    ) -> dict[str, Entering]:
        """Return the installs that typed tables at these cuts have to take in, by table."""
        if not installs:
            return {}
        deployment = self._deployed.deployment()
        of: dict[tuple[str, str], list[tuple[Install, Epoch]]] = {}
        for install, epoch in installs:
            if wanted(f"typed/{install.source}.{install.table}"):
                of.setdefault((install.source, install.table), []).append((install, epoch))
        return {
            f"typed/{source}.{table}": Entering(
                typed=self._copied,
                installs=own,
                event_time=deployment.event_times(source).get(table),
                brought_to=cuts.get(source, 0),
            )
            for (source, table), own in of.items()
        }

    def _staged(
        self, source: str, installs: Sequence[tuple[Install, Epoch]]
    ) -> dict[str, tuple[str, int]]:
        """Return path and version of a source's rows as they were copied, by `current` table."""
        return {
            current_name(source, i.table): (generation_root(self._lake, i), i.version)
            for i, _ in installs
            if i.source == source
        }

    def _installs(
        self, epochs: Sequence[Committed], *, forgotten: bool
    ) -> list[tuple[Install, Epoch]]:
        """Return the installs that these epochs took in, or epochs before that are `forgotten`."""
        taken = {number: done.epoch for done in epochs for number in done.installs}
        if forgotten and epochs:
            first = Progress.from_json(epochs[0].progress)
            known = (i.number for i in self._book.installs() if i.number in first.installs)
            older = [n for n in known if str(n) not in first.declined]
            taken = dict.fromkeys(older, epochs[0].epoch) | taken
        if not taken:
            return []
        return [(i, taken[i.number]) for i in self._book.installs() if i.number in taken]
