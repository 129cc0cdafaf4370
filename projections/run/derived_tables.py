"""Brings typed and history tables from one epoch to another, before projections read them.

The common cursor is the manifest's `typed` row. It only saves work: every table's own guard
decides what it still lacks, so that losing the row repeats nothing.

A table that fails is held: it keeps the epoch before, with its cause, and all others go on. It is
tried again by itself, from that epoch, after pauses that grow, and at once when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from kernel import failpoints
from kernel.errors import Retry, retry_directive
from kernel.positions import Epoch
from lake.attempts import Attempts
from lake.layout import Lake
from lake.tables import TableAt, Tables
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import TYPED, Committed, Projected
from pipeline.commit.retries import Retries
from pipeline.ddl.held_tables import NO_ORDER, Hold, failure_hold
from pipeline.history.shape import HistoryOf
from pipeline.history.tables import HistoryTables
from pipeline.typed.tables import TypedTables
from pipeline.typed.topics import typed_topic
from projections.run.catalog import DeployedCatalog
from projections.run.derived_holds import covered, free, in_quarantine, own_hold
from projections.run.derived_topics import DerivedTopics
from projections.run.step_budget import within_budget
from projections.run.typed_steps import TypedSteps


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """All derived tables at one epoch, with their versions.

    `held` do not have the epoch; a name may stand for all tables below it. Of such a table
    `tables` has the version that it had before.
    """

    epoch: Epoch
    tables: Mapping[str, TableAt]
    held: Mapping[str, Hold] = field(default_factory=dict)

    def differs(self, before: Brought) -> bool:
        """Say whether there are other tables than before, or others are held."""
        return self.tables.keys() != before.tables.keys() or self.held != before.held


class TakesNotes(Protocol):
    """Notes in the manifest how far tables have come, at once or with what follows."""

    def __call__(self, done: Projected, *, again: bool) -> None:
        """See `Manifest.project_all`."""
        ...


class DerivedTables:
    """Typed tables for all of the log, history tables for those that are asked for."""

    def __init__(
        self,
        lake: Lake,
        tables: Tables,
        manifest: Manifest,
        typed: TypedTables,
        history: HistoryTables,
        *,
        note: TakesNotes | None = None,
    ) -> None:
        """`note` takes how far they have come; without it the manifest has it at once."""
        self._note = note or manifest.project
        self._lake = lake
        self._tables = tables
        self._manifest = manifest
        self._typed = typed
        self._history = history
        self._steps = TypedSteps(lake, tables, manifest, typed)
        self._deployed = DeployedCatalog(lake, tables)
        self.topics = DerivedTopics(typed, self._deployed)
        self._brought: Brought | None = None
        self._retries = Retries()
        self._in_quarantine: frozenset[str] = frozenset()
        self.passing: set[str] = set()
        """Held tables whose error may pass by itself: storage or the registry was away."""

    def at(self) -> Brought:
        """Return how far typed tables have come. This object is their only writer."""
        if self._brought is not None:
            return self._brought
        run = self._manifest.projected().get(TYPED)
        if run is None:
            return Brought(epoch=Epoch(0), tables={})
        return Brought(epoch=run.epoch, tables={**run.standing, **run.tables}, held=run.held)

    def at_last(self) -> Brought:
        """Return how far typed tables came in this process. Reads nothing, for any thread."""
        return self._brought or Brought(epoch=Epoch(0), tables={})

    def due(self) -> bool:
        """Say whether a held table is to be tried again now."""
        held = self.at().held.items()
        return any(self._tried(name, hold) and self._retries.due(name) for name, hold in held)

    def _tried(self, name: str, hold: Hold) -> bool:
        """Say whether a held table may be tried: not while rows of it are in quarantine."""
        typed = name.replace("history/", "typed/", 1)
        return hold.resumes is None or not covered(typed, self._in_quarantine)

    def try_now(self) -> None:
        """Try held tables again at the next occasion, whatever pause they are in."""
        self._retries.clear()

    def bring(self, before: Brought, up_to: Committed, histories: Sequence[HistoryOf]) -> Brought:
        """Append everything that became visible after `before` up to an epoch, then fold.

        What fails is held and keeps nothing else back. Raises `LeaseLost`.
        """
        made, held = dict(before.tables), dict(before.held)
        waiting = in_quarantine(up_to)
        self._in_quarantine = frozenset(waiting)
        for name in self.topics.unwanted(held, [each.name for each in histories]):
            del held[name]
        for name in waiting.keys() - held.keys():
            held[name] = replace(waiting[name], from_epoch=before.epoch + 1)
        self._retry(before, up_to, made, held)
        if up_to.epoch > before.epoch:
            attempts = Attempts()
            mine = partial(free, tuple(held))
            self._steps.bring(attempts, before.tables, before.epoch, up_to, mine)
            self._took(attempts, Epoch(before.epoch + 1), made, held)
            failpoints.hit(failpoints.TYPED_AFTER_APPEND)
        self._bring_topics(before, up_to, made, held)
        first = Epoch(min(before.epoch + 1, up_to.epoch))
        for history in histories:
            self._bring_history(history, first, up_to.epoch, made, held)
        now = Brought(epoch=up_to.epoch, tables=made, held=held)
        made = {n: at if covered(n, held) else self._as_now(n, at) for n, at in made.items()}
        changed = made != dict(before.tables) or held != dict(before.held)
        if changed or up_to.epoch > before.epoch:
            still = {name: at for name, at in made.items() if covered(name, held)}
            own = {name: at for name, at in made.items() if name not in still}
            done = Projected(epoch=up_to.epoch, name=TYPED, tables=own, held=held, standing=still)
            self._note(done, again=up_to.epoch == before.epoch)
        self._brought = replace(now, tables=made)
        return self._brought

    def _took(
        self,
        attempts: Attempts,
        first: Epoch,
        made: dict[str, TableAt],
        held: dict[str, Hold],
    ) -> None:
        """Book what was done, and hold what failed from epoch `first` on."""
        made |= attempts.done
        for name, error in attempts.failed.items():
            since = min(first, held[name].from_epoch) if name in held else first
            held[name] = failure_hold(error, from_epoch=since)
            self._retries.failed(name)
            passes = retry_directive(error) is not Retry.NEVER
            (self.passing.add if passes else self.passing.discard)(name)

    def _retry(
        self,
        before: Brought,
        up_to: Committed,
        made: dict[str, TableAt],
        held: dict[str, Hold],
    ) -> None:
        """Bring held typed tables up to where the others are, as far as one step goes."""
        if not before.epoch:
            return
        others = self._manifest.at(before.epoch)
        for name, hold in before.held.items():
            own = name.startswith("typed/") and not name.startswith(typed_topic(""))
            if not (own and self._retries.due(name) and self._tried(name, hold)):
                continue
            after = Epoch(hold.from_epoch - 1)
            reached = within_budget(self._manifest, after, others)
            attempts = Attempts()
            rest = tuple(other for other in held if other != name)
            alone = partial(own_hold, name, rest)
            self._steps.bring(attempts, before.tables, after, reached, alone)
            attempts.narrow(name)
            del held[name]
            self._took(attempts, Epoch(hold.from_epoch), made, held)
            if not attempts.failed:
                self._retries.forget(name)
                if reached.epoch < before.epoch:
                    held[name] = replace(hold, from_epoch=reached.epoch + 1)

    def lacks(self, brought: Brought, histories: Iterable[HistoryOf]) -> bool:
        """Say whether a history was asked for just now, cannot be opened, or was removed to have it
        computed anew; or whether a table is held that nobody asks for any more.
        """
        wanted = {each.name: each for each in histories}
        for name in wanted.keys() - brought.held.keys():
            there = False
            with Attempts().of(name):
                there = wanted[name].cursor(self._tables.open(self._lake.path(name))) is not None
            if name not in brought.tables or not there:
                return True
        unwanted = self.topics.unwanted(brought.held, wanted)
        return bool(unwanted) or self.topics.lacks(brought.tables, brought.held)

    def _bring_topics(
        self, before: Brought, up_to: Committed, made: dict[str, TableAt], held: dict[str, Hold]
    ) -> None:
        moved = up_to.epoch > before.epoch
        found = self.topics.bring(up_to.epoch, made, held, moved=moved, due=self._retries.due)
        for name in found.done:
            held.pop(name, None)
            self._retries.forget(name)
        self._took(found, Epoch(before.epoch + 1), made, held)

    def _bring_history(
        self,
        history: HistoryOf,
        first: Epoch,
        epoch: Epoch,
        made: dict[str, TableAt],
        held: dict[str, Hold],
    ) -> None:
        """Fold a history, unless what it is folded from is held or its own pause is not over."""
        name, from_epoch = history.name, first
        if name in held:
            from_epoch = Epoch(held[name].from_epoch)
        inputs = (history.typed, history.truncates or history.typed)
        for base in (item for item in inputs if covered(item, held)):
            hold = Hold(order=NO_ORDER, reason=f"{base} is held", from_epoch=from_epoch)
            held[name] = replace(hold, resumes=held[base].resumes if base in held else None)
            return
        if name in held and not self._retries.due(name):
            return
        attempts = Attempts()
        with attempts.of(name):
            folded = self._history.fold(history, epoch)
            held.pop(name, None)
            self._retries.forget(name)
            if folded is not None:
                made[name] = folded
                failpoints.hit(failpoints.HISTORY_AFTER_FOLD)
        self._took(attempts, from_epoch, made, held)

    def _as_now(self, name: str, at: TableAt) -> TableAt:
        """Return a table's newest version: a compaction makes one, and nobody keeps the old.

        One that cannot be opened and has nothing new is held once it has, and stops no other.
        """
        with Attempts().of(name):
            table = self._tables.open(self._lake.path(name))
            if table is not None:
                return replace(at, version=table.version())
        return at
