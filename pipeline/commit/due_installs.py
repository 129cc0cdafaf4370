"""Announced installs in ingest: which ones an epoch takes in, and when each is due.

An epoch is bound to the announcements that wait when it begins. One is due when the cut has reached
its LSN: in the bound epoch or, bound again, in a later one. What an epoch decides depends on its
bound numbers and the progress before it only, so that a repeated epoch decides the same.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from kernel.errors import InstallDeclined
from kernel.positions import Epoch
from lake.layout import Lake
from lake.tables import TableAt, Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.quarantine import Quarantine
from pipeline.commit.retries import Patience
from pipeline.ddl.held_tables import stranded_hold
from pipeline.installs.install_book import (
    ALL,
    DECISIONS,
    DECODE,
    HOLD,
    INSTALL,
    STRAND,
    WAIVE,
    Install,
    InstallBook,
    InstallEntry,
    install_of,
)
from pipeline.installs.installation import Installer
from pipeline.log.committed_changes import EndsBetween
from pipeline.position.cut import Cut
from pipeline.position.progress import Progress

TAKEN = (HOLD, INSTALL, WAIVE, STRAND)
"""Announcements of which an epoch takes all that wait."""


@dataclass(slots=True, kw_only=True)
class TakenInstalls:
    """What the installs of one source did in an epoch. `mends` wait for the epoch's own fold."""

    tables: dict[str, TableAt] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    numbers: list[int] = field(default_factory=list)
    mends: list[Install] = field(default_factory=list)


class BulkInstalls:
    """Looks after the announcements of one lake for ingest."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        manifest: Manifest,
        installer: Installer,
        quarantine: Quarantine,
        patience: Patience | None = None,
    ) -> None:
        self._quarantine = quarantine
        self._book = InstallBook(lake, tables)
        self._manifest = manifest
        self._installer = installer
        self._patience = patience or Patience()

    def waiting(self, progress: Progress) -> tuple[int, ...]:
        """Return the numbers that were announced and not taken in yet.

        An epoch decodes the records of one decision again: these are many enough.
        """
        waits = [e for e in self._book.entries() if e.number not in progress.installs]
        decode = [entry.number for entry in waits if entry.kind == DECODE][:1]
        taken = [entry.number for entry in waits if entry.kind in TAKEN]
        return tuple(sorted(taken + decode))

    def decisions(self, numbers: Collection[int]) -> list[InstallEntry]:
        """Return the bound decisions about records in quarantine."""
        return [entry for entry in self._bound(numbers) if entry.kind in DECISIONS]

    def begin(self, numbers: Collection[int], progress: Progress) -> None:
        """Take in the holds among the bound announcements, before the epoch's rows."""
        for entry in self._bound(numbers):
            if entry.kind == HOLD:
                progress.cut(entry.source).hold()
                progress.installs.add(entry.number)

    def sources(self, numbers: Collection[int]) -> set[str]:
        """Return the sources that the bound installs belong to."""
        return {entry.source for entry in self._bound(numbers) if entry.kind == INSTALL}

    def take(
        self,
        source: str,
        numbers: Collection[int],
        progress: Progress,
        epoch: Epoch,
        *,
        stands_at: int,
    ) -> TakenInstalls:
        """Install whole tables that are due, and release the source's cut where they do.

        Call it when the cut has advanced, before the epoch's changes are folded: tables are as of
        the cut `stands_at`.
        """
        cut, taken = progress.cut(source), TakenInstalls()
        waiting = self._installs(source, numbers, progress)
        since = [install.since for install in waiting if install.releases]
        if cut.held and since:
            cut.give_up(max(since))
        due = [install for install in waiting if install.lsn <= cut.reached]
        releasing = [install for install in due if install.releases]
        if cut.held and not releasing:
            return taken
        for install in self._last_of_each(due, progress):
            if install.kind != ALL:
                taken.mends.append(install)
                continue
            ends = self._ends(install, cut, epoch)
            try:
                self._quarantine.refuse_older(install, progress)
                held = progress.held.get(source, {}).get(install.table)
                done = self._installer.replace(install, ends, epoch, held, stands_at=stands_at)
                taken.tables |= done
            except InstallDeclined as reason:
                self._decline(install, reason, progress)
                continue
            except Exception as error:
                self._patience.lasts(install.id, error)
                self._decline(install, error, progress)
                continue
            self._done(install, progress, taken)
            self._quarantine.copied(install, progress)
            taken.replaced.add(install.table)
            progress.held.get(source, {}).pop(install.table, None)
            cut.installed(install.table)
        # Those of one run may be due in several epochs: the first ones release.
        if releasing and cut.held:
            cut.release(copied=taken.replaced, since=max(i.since for i in releasing))
        return taken

    def strand(
        self, source: str, numbers: Collection[int], progress: Progress, epoch: Epoch
    ) -> None:
        """Hold the tables that were announced as stranded, as far as the cut does not fold them.

        Call it when installs were taken. Where the cut is held it is too early to tell.
        """
        cut, held = progress.cut(source), progress.held.setdefault(source, {})
        for entry in self._bound(numbers):
            if (entry.kind, entry.source) != (STRAND, source) or cut.held:
                continue
            for table in entry.detail["tables"]:
                if table not in held and not cut.folds(table):
                    held[table] = stranded_hold(from_epoch=epoch)
            progress.installs.add(entry.number)

    def mend(self, taken: TakenInstalls, progress: Progress, epoch: Epoch) -> None:
        """Install ranges, after the epoch's changes were folded."""
        for install in taken.mends:
            cut = progress.cut(install.source)
            try:
                if not cut.folds(install.table) or install.table in progress.held.get(
                    install.source, {}
                ):
                    raise InstallDeclined(f"{install.table} stands still")
                ends = self._ends(install, cut, epoch)
                taken.tables |= self._installer.mend(install, ends, epoch)
            except InstallDeclined as reason:
                self._decline(install, reason, progress)
                continue
            except Exception as error:
                self._patience.lasts(install.id, error)
                self._decline(install, error, progress)
                continue
            self._done(install, progress, taken)

    def _ends(self, install: Install, cut: Cut, epoch: Epoch) -> EndsBetween:
        first = min(install.lsns)
        return EndsBetween(
            after=first,
            up_to=cut.reached,
            first_epoch=self._manifest.pending_since(install.source, first),
            last_epoch=epoch,
        )

    def _bound(self, numbers: Collection[int]) -> list[InstallEntry]:
        if not numbers:
            return []
        return [entry for entry in self._book.entries() if entry.number in numbers]

    def _installs(self, source: str, numbers: Collection[int], progress: Progress) -> list[Install]:
        """Return the bound installs, but for those that were read behind a slot that is lost.

        They lack what the source did until its next slot began, and nothing behind them has it.
        """
        entries = [entry for entry in self._bound(numbers) if entry.kind == INSTALL]
        installs = [install_of(entry) for entry in entries if entry.source == source]
        if not installs:
            return []  # So it is in nearly every epoch: the book is not looked into.
        holds = [
            entry
            for entry in self._book.entries()
            if (entry.kind, entry.source) == (HOLD, source) and entry.number in progress.installs
        ]
        found: list[Install] = []
        for install in installs:
            if holds and _behind_lost(install, holds[-1]):
                lost = InstallDeclined(f"{install.table} was read behind a slot that is lost")
                self._decline(install, lost, progress)
            else:
                found.append(install)
        return found

    def _last_of_each(self, due: list[Install], progress: Progress) -> list[Install]:
        """Return what is due, of several copies of a table the last: one epoch swaps it once."""
        last = {install.table: install for install in due if install.kind == ALL}
        found: list[Install] = []
        for install in due:
            if install.kind != ALL or install is last[install.table]:
                found.append(install)
            else:
                later = InstallDeclined(f"a later copy of {install.table} came with it")
                self._decline(install, later, progress)
        return found

    @staticmethod
    def _done(install: Install, progress: Progress, taken: TakenInstalls) -> None:
        progress.installs.add(install.number)
        taken.numbers.append(install.number)

    @staticmethod
    def _decline(install: Install, reason: Exception, progress: Progress) -> None:
        progress.installs.add(install.number)
        progress.declined[str(install.number)] = str(reason)


def _behind_lost(install: Install, hold: InstallEntry) -> bool:
    """Say whether an install is of a slot before the one that a source is held for.

    Ranges do not name their slot: they were read before they were announced.
    """
    if install.kind != ALL:
        return install.number < hold.number
    # Holds of before they named their slot have none.
    return install.slots < int(hold.detail.get("slots", 0))
