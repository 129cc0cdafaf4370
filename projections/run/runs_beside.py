"""Runs of projections that would keep the others waiting, each group in a thread of its own.

A round is for what takes a moment. A first run over much data, a change that Spark alone computes,
state that is made anew from many rows, and a query that is slow by itself leave it, together with
the projections that read them, which have to be at the same epoch (P5). Beside the rounds they are
computed up to the epoch of the round that they left, from the tables as that round left them, while
the others go on. Then the next round takes them back: it brings them forward, or lets them leave
again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kernel.positions import DeltaVersion, Epoch
from lake.layout import Lake
from lake.tables import Tables
from projections.run.catalog import LIVE, Deployment
from projections.run.derived_holds import held_input
from projections.run.derived_tables import Brought
from projections.run.projection_states import ProjectionState, Run
from projections.run.projector import Projector
from projections.run.relations import LakeCatalog
from projections.run.targets import Target, live_target
from projections.sql.plans.plan import Plan
from projections.sql.statements.lineage import in_order, read_by

MOST_AT_ONCE = 3
"""So many groups are computed at a time: each takes memory, and they share the cores."""
SLOW_MS = 1000.0
"""A projection whose run took longer than this leaves the next round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRun:
    """One run to do, up to an epoch.

    `target` pins the versions of all tables that others write meanwhile.
    """

    name: str
    up_to: Epoch
    plan: Plan
    target: Target


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowOutcome:
    """What came of a run: `done`, or the `error`; neither where it waits for another's error."""

    run: SlowRun
    done: Run | None = None
    error: Exception | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class SlowGroup:
    """Runs that are done one after the other, by a projector that nobody else uses meanwhile."""

    projector: Projector
    catalog: LakeCatalog
    runs: Sequence[SlowRun]
    since: float = field(default_factory=time.monotonic)
    outcomes: list[SlowOutcome] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def names(self) -> frozenset[str]:
        """The projections that are computed."""
        return frozenset(each.name for each in self.runs)

    def work(self, begins: Callable[[], None]) -> None:
        """Do the runs. An error is the projection's own, and that of those that read it."""
        failed: set[str] = set()
        try:
            try:
                begins()
            except Exception as error:
                self.fail(error)
                return
            for each in self.runs:
                outcome = SlowOutcome(run=each)
                if failed.isdisjoint(read_by(each.plan)):
                    outcome = self._done(each)
                if outcome.done is None:
                    failed.add(each.name)
                self.outcomes.append(outcome)
        finally:
            self.ended.set()

    def fail(self, error: Exception) -> None:
        """End without having begun: the error is that of all projections of the group."""
        self.outcomes += [SlowOutcome(run=each, error=error) for each in self.runs]
        self.ended.set()

    def _done(self, each: SlowRun) -> SlowOutcome:
        try:
            done = self.projector.run(each.plan, each.target, self.catalog, each.up_to)
        except Exception as error:
            return SlowOutcome(run=each, error=error)
        return SlowOutcome(run=each, done=done)


@dataclass(frozen=True, slots=True)
class RoundOfProjections:
    """What a round of projections was of: all of them as they are at the end of it.

    `reads` are the projections that each reads, `waits` those that wait for their trigger.
    """

    lake: Lake
    plans: Mapping[str, Plan]
    reads: Mapping[str, Collection[str]]
    deployment: Deployment
    brought: Brought
    states: Mapping[str, ProjectionState]
    waits: Collection[str]

    def fit(self, name: str, group: Collection[str]) -> bool:
        """Say whether a projection of a group may be computed up to the round's epoch now."""
        entry, _ = self.deployment.projections[name]
        rests = entry.status != LIVE or self.deployment.claimed(name) or name in self.waits
        others = (self.states.get(other) for other in self.reads[name] if other not in group)
        return (
            not rests
            and held_input(self.plans[name], self.brought.held) is None
            and all(other is not None and other.epoch >= self.brought.epoch for other in others)
        )

    def run_of(self, name: str, group: Collection[str], tables: Tables) -> SlowRun:
        """Return a run whose target pins all that is written while it goes on."""
        entry, _ = self.deployment.projections[name]
        pinned = {each: at.version for each, at in self.brought.tables.items()}
        for other in {*self.reads[name]} - {*group}:
            table = tables.open(self.lake.path(f"projection/{other}"))
            if table is not None:
                pinned[f"projection/{other}"] = DeltaVersion(table.version())
        target = live_target(self.lake, name, entry.generation, include_late=entry.include_late)
        return SlowRun(
            name=name,
            up_to=self.brought.epoch,
            plan=self.plans[name],
            target=replace(target, versions=pinned),
        )


def _nothing() -> None:
    """Begin a thread without any preparation."""


class RunsBeside:
    """The groups that are computed beside the rounds of one loop, which calls everything here."""

    def __init__(
        self,
        *,
        most: int = MOST_AT_ONCE,
        slow_ms: float = SLOW_MS,
        begins: Callable[[], None] | None = None,
    ) -> None:
        """`begins` is called by each thread before its work."""
        self.most = most
        self.slow_ms = slow_ms
        self._begins = begins or _nothing
        self._groups: list[SlowGroup] = []
        self._left: dict[str, float] = {}
        self.wanted: set[str] = set()
        """Projections that left the round that is being done."""

    def __contains__(self, name: str) -> bool:
        return name in self.wanted or self._at_work(name)

    def _at_work(self, name: str) -> bool:
        return any(name in group.names for group in self._groups)

    @property
    def full(self) -> bool:
        """Whether no more groups are begun now."""
        return len(self._groups) >= self.most

    def since(self, name: str) -> float | None:
        """Return for how many seconds a projection has been computed; None where it is not."""
        begun = [group.since for group in self._groups if name in group.names]
        return time.monotonic() - begun[0] if begun else None

    def any_ended(self) -> bool:
        """Say whether a group waits to be taken back."""
        return any(group.ended.is_set() for group in self._groups)

    def take_back(self, own: Projector, deployment: Deployment, lake: Lake) -> list[SlowOutcome]:
        """Give back to `own` what has ended; return what came of projections that are there still.

        What belongs to a generation that is none any more is forgotten.
        """
        ended = [group for group in self._groups if group.ended.is_set()]
        self._groups = [group for group in self._groups if group not in ended]
        found = []
        for group in ended:
            for each in group.outcomes:
                if _is_live(each.run, deployment, lake):
                    own.take_over(group.projector, each.run.target.app_id)
                    found.append(each)
            group.projector.close()
        return found

    def let_leave(
        self,
        at: RoundOfProjections,
        own: Projector,
        alone: Callable[[RoundOfProjections], tuple[Projector, LakeCatalog]],
        tables: Tables,
    ) -> None:
        """Compute who leaves a round beside it: each group by a projector that `alone` makes."""
        for names in self._leaving(at):
            projector, catalog = alone(at)
            try:
                runs = [at.run_of(name, names, tables) for name in names]
            except BaseException:
                projector.close()
                raise
            for each in runs:
                projector.take_over(own, each.target.app_id)
            self._begin(SlowGroup(projector=projector, catalog=catalog, runs=runs))
        self.wanted.clear()

    def readers(self, names: Collection[str], reads: Mapping[str, Collection[str]]) -> set[str]:
        """Return who reads those of some projections that have left a round before.

        Whoever is not due with them would find them at another epoch, again and again.
        """
        return _with_readers(self._left.keys() & set(names), reads)

    def _leaving(self, at: RoundOfProjections) -> Iterator[list[str]]:
        """Yield who leaves the round, in groups: each with all that read it, in order.

        Who has waited longest comes first, so that none waits for ever.
        """
        groups: list[set[str]] = []
        for name in self.wanted & at.plans.keys():
            own = _with_readers({name}, at.reads)
            apart = [group for group in groups if group.isdisjoint(own)]
            groups = [*apart, own.union(*(group for group in groups if group not in apart))]
        groups.sort(key=lambda group: min(self._left.get(name, 0.0) for name in group))
        order = in_order(at.reads)
        for group in groups:
            names: list[str] = []
            for name in order:
                read = group & {*at.reads[name]}
                if (
                    name in group
                    and not self._at_work(name)
                    and read <= {*names}
                    and at.fit(name, group)
                ):
                    names.append(name)
            if names and not self.wanted.isdisjoint(names) and not self.full:
                yield names

    def _begin(self, group: SlowGroup) -> None:
        """Compute a group from now on."""
        self._groups.append(group)
        self._left |= dict.fromkeys(group.names, time.monotonic())
        thread = threading.Thread(
            target=group.work,
            args=(self._begins,),
            name=f"projections beside: {group.runs[0].name}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            # The process has as many threads as it may have. Nobody else would end the group.
            group.fail(error)


def _is_live(run: SlowRun, deployment: Deployment, lake: Lake) -> bool:
    entry, _ = deployment.projections.get(run.name, (None, None))
    if entry is None or entry.status != LIVE:
        return False
    return live_target(lake, run.name, entry.generation).app_id == run.target.app_id


def _with_readers(names: Collection[str], reads: Mapping[str, Collection[str]]) -> set[str]:
    """Return projections and all that read them, directly or through others."""
    found = {*names}
    while more := {n for n, read in reads.items() if n not in found and found & set(read)}:
        found |= more
    return found
