"""What a replay would do, before it does anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import NamedTuple

import pyarrow.compute as pc

from kernel.errors import Conflict, InvalidRequest, StorageFull
from kernel.positions import Epoch
from lake import storage
from lake.datasets import dataset_of
from lake.file_actions import size_of
from pipeline.ddl.held_tables import retry_command
from pipeline.executor import ExecutorChoice
from pipeline.typed.columns import EPOCH, LATE
from projections.run.driver_builds import DriverBuilds
from projections.run.input_rows import input_bytes
from projections.run.meanings import meaning_of
from projections.sql.statements.lineage import read_by, readers_of
from replay.bases import Base, base_of, parts_of
from replay.book import ReplayBook
from replay.carried_keys import sliceable
from replay.driver_slices import most_laid_bytes
from replay.effects import Effect, effects_of, features_of
from replay.rates import Rates, rates_for
from replay.resumption import refuse_held
from replay.slices import copying, slicing_of
from replay.starts import BEGINNING, Start
from replay.subject import (
    Site,
    Subject,
    declaration,
    entry_of,
    holds_of,
    input_tables,
    noted_epoch,
    reachable,
    subject_of,
)
from replay.table_types import TypeDifference, differences

BEFORE_ALL = Epoch(0)


class ReplayChange(StrEnum):
    """What kind of change a replay makes to a projection."""

    NONE = "none"
    COMPATIBLE = "compatible"
    NEW_GENERATION = "new generation"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSize:
    """One table that is read. `late`: rows that were closed as late."""

    name: str
    rows: int
    bytes: int
    late: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInput:
    """A table that is read and stands still: a build ends before `from_epoch`. `fix` releases it.

    As where its rows need a version of a schema that nobody has any more.
    """

    name: str
    from_epoch: int
    reason: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a plan was made of: it is applied as long as none of this has changed.

    That the log went on is no change: a build then takes in more. `inputs`: the generations of the
    other projections that are read.
    """

    live_generation: int
    generation: int
    live_query: str
    query: str
    meaning: str
    base: str | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What would change, what it costs and how to go back. Times in seconds, as a range.

    `start`: from where the build begins, `base`: the rows that it begins with, None from the
    beginning. `text`: the query of the new generation, None for the deployed one. `types`: columns
    that come, go or change. `epochs`: the first and the last that is read; the first is greater
    by one where there is none. `rows`: that the build reads, `later`: that came after its epoch,
    which the live generation has not either. `late_rows`: that only `--include-late` brings in.
    `scratch_bytes`: of inputs laid apart meanwhile on this machine's disk, at most (None: any).
    `sliceable`: there are slices, between which a build with a limited rate waits.
    `downstream`: the deployed projections that read this one. `silent`: what is given out to
    nobody while the build runs. `new_features`: of Delta's protocol, that readers of the result
    must know and those of the live table need not. `free_bytes` None: not a local lake. Of these
    `reserve_bytes` are to stay free: below that the pipeline takes nothing in. `place`: of the
    table in another lake, where it is built there: then nobody here reads it.
    """

    name: str
    live_generation: int
    generation: int
    change: ReplayChange
    why: str
    types: tuple[TypeDifference, ...]
    text: str | None
    include_late: bool
    start: Start
    base: Base | None
    epochs: tuple[int, int]
    inputs: tuple[InputSize, ...]
    held: tuple[HeldInput, ...]
    rows: int
    later: int
    bytes: int
    late_rows: int
    live_rows: int
    live_bytes: int
    slices: int
    scratch_bytes: int | None
    sliceable: bool
    rates: Rates
    seconds: tuple[int, int]
    needed_bytes: int
    free_bytes: int | None
    reserve_bytes: int
    downstream: tuple[str, ...]
    silent: tuple[Effect, ...]
    new_features: tuple[str, ...]
    not_rebuilt: tuple[str, ...]
    go_back: str
    basis: Basis
    place: str | None = None

    @property
    def fits(self) -> bool:
        """Whether there is room for the new generation."""
        return self.free_bytes is None or self.needed_bytes + self.reserve_bytes <= self.free_bytes


def plan_replay(
    site: Site,
    name: str,
    *,
    text: str | None = None,
    include_late: bool = False,
    start: Start = BEGINNING,
    choice: ExecutorChoice | None = None,
    reserve_bytes: int = 0,
) -> ReplayPlan:
    """Say what `replay apply` would do. Reads statistics only, changes nothing.

    `choice`: who makes slices. `reserve_bytes` stay free on this lake's disk. Raises as `base_of`.
    """
    subject = subject_of(site, name, text)
    inputs = tuple(table_size(site, table) for table in input_tables(subject))
    up_to, live = build_epoch(site, subject), table_size(site, f"projection/{name}")
    base = base_of(site, subject, start, up_to=up_to, include_late=include_late)
    after = BEFORE_ALL if base is None or base.where is not None else base.epoch
    rows, later = input_rows(site, subject, up_to, after=after)
    change, why = _change(subject, include_late)
    rates = rates_for(name, ReplayBook(site.lake, site.tables).built())
    generation, cut = next_generation(site, name), _cut(site, subject, rows, base, choice)
    place = None if site.into is None else site.into.path(f"projection/{name}")
    return ReplayPlan(
        name=name,
        live_generation=subject.entry.generation,
        generation=generation,
        change=change,
        why=why,
        types=_types(site, subject),
        text=text,
        include_late=include_late,
        start=start,
        base=base,
        epochs=(after + 1, up_to),
        inputs=inputs,
        held=_held(site, subject),
        rows=rows,
        later=later,
        bytes=sum(item.bytes for item in inputs),
        late_rows=sum(item.late for item in inputs) if subject.plan.stateful else 0,
        live_rows=live.rows,
        live_bytes=live.bytes,
        slices=cut.slices,
        scratch_bytes=cut.scratch_bytes,
        sliceable=cut.slices > 1 or (base is None and bool(sliceable(subject.plan))),
        rates=rates,
        seconds=(rates.seconds(0 if start.where is not None else rows)[0], rates.seconds(rows)[1]),
        needed_bytes=2 * max(live.bytes, 1),  # As much again while files are put together.
        free_bytes=storage.free_bytes(site.place.root),
        reserve_bytes=0 if place else reserve_bytes,
        downstream=() if place else _downstream(site, name),
        silent=() if place else _silent(site, subject, up_to),
        new_features=_new_features(site, subject),
        not_rebuilt=tuple(item.name for item in inputs),
        go_back=f"remove {place}" if place else f"penstock replay rollback {name}",
        basis=_basis(site, subject, generation, base, include_late=include_late),
        place=place,
    )


def _basis(
    site: Site, subject: Subject, generation: int, base: Base | None, *, include_late: bool
) -> Basis:
    entry = subject.entry
    return Basis(
        live_generation=entry.generation,
        generation=generation,
        live_query=declaration(entry.name, entry.text).fingerprint,
        query=subject.plan.fingerprint,
        meaning=meaning_of(subject.plan, include_late=include_late or entry.include_late),
        base=None if base is None else _told(base),
        inputs={name: entry_of(site, name).generation for name in sorted(read_by(subject.plan))},
    )


def _told(base: Base) -> str:
    """Say which base it is: of the same moment, one that has come nearer to it is no other."""
    return base.asked if base.savepoint is None else f"{base.savepoint} {base.version}"


def refuse_changed(
    planned: Mapping[str, object], now: ReplayPlan, *, unfinished: int | None = None
) -> None:
    """Raise `Conflict` where a plan, as its document says, was made of something else than now.

    `unfinished`: the generation of a build that is gone on with, in place of a new one.
    """
    before, found = planned.get("basis"), asdict(now.basis)
    if unfinished is not None:
        found["generation"] = unfinished
    if not isinstance(before, dict):
        raise InvalidRequest(
            "the file is no plan", remedy=f"penstock replay plan {now.name} --json > plan.json"
        )
    moved = [each for each, value in found.items() if (before.get(each) or None) != (value or None)]
    if "query" in moved:
        moved.remove("meaning")  # Of another query that says nothing more.
    if moved:
        told = ", ".join(
            f"{name.replace('_', ' ')} was {before.get(name)}, is {found[name]}" for name in moved
        )
        raise Conflict(
            f"the plan for {now.name} is stale: {told}",
            remedy=f"Look at what would happen now: penstock replay plan {now.name}",
        )


def refuse_full(plan: ReplayPlan) -> None:
    """Raise `StorageFull` where the new generation would not find room."""
    if not plan.fits:
        kept = f", {plan.reserve_bytes:,} of which stay in reserve" if plan.reserve_bytes else ""
        raise StorageFull(
            f"generation {plan.generation} of {plan.name} needs {plan.needed_bytes:,} bytes and "
            f"{plan.free_bytes:,} are free{kept}",
            remedy="Free disk space, lower storage.min_free_bytes, or drop generations that are "
            "not needed: "
            f"penstock replay status, penstock replay cancel {plan.name}",
        )


def _change(subject: Subject, include_late: bool) -> tuple[ReplayChange, str]:
    old, new = declaration(subject.entry.name, subject.entry.text), subject.decl
    if include_late and not subject.entry.include_late:
        return ReplayChange.NEW_GENERATION, "late rows are taken in"
    if old.key != new.key:
        told = f"the key was {', '.join(old.key)} and is {', '.join(new.key)}"
        return ReplayChange.NEW_GENERATION, told
    if old.fingerprint != new.fingerprint:
        return ReplayChange.NEW_GENERATION, "the query is another one"
    if (old.freshness, old.emit, old.sink) != (new.freshness, new.emit, new.sink):
        told = "its rows stay the same: penstock projection apply takes it without a build"
        return ReplayChange.COMPATIBLE, told
    return ReplayChange.NONE, "the deployed query, computed again"


def _held(site: Site, subject: Subject) -> tuple[HeldInput, ...]:
    return tuple(
        HeldInput(
            name=name,
            from_epoch=hold.from_epoch,
            reason=hold.reason,
            fix=retry_command(name, hold),
        )
        for name, hold in holds_of(site, subject).items()
    )


def _types(site: Site, subject: Subject) -> tuple[TypeDifference, ...]:
    """Compare the columns that the query gives with those that the deployed one gives."""
    if subject.decl == declaration(subject.entry.name, subject.entry.text):
        return ()
    deployed = subject_of(site, subject.entry.name)
    old, new = (
        {each.name: each.type for each in plan.columns} for plan in (deployed.plan, subject.plan)
    )
    return differences(old, new)


def _downstream(site: Site, name: str) -> tuple[str, ...]:
    return tuple(readers_of(name, site.deployed.deployment().declared.values()))


class _Cut(NamedTuple):
    slices: int
    scratch_bytes: int | None


def _cut(
    site: Site, subject: Subject, rows: int, base: Base | None, choice: ExecutorChoice | None
) -> _Cut:
    if base is not None:
        parts = parts_of(site, subject.entry.name, base)
        return _Cut(copying(parts, None, None, where=base.where).slices, 0)
    size = input_bytes(site.lake, site.tables, subject.plan, subject.catalog)
    builds = DriverBuilds(site.lake, site.tables, choice or ExecutorChoice())
    here = builds.suits(subject.plan, subject.catalog, size)
    slicing = slicing_of(subject.plan, rows, size=size, here=here)
    laid = most_laid_bytes(builds, subject.plan, subject.catalog, slicing, size)
    return _Cut(slicing.slices, laid)


def _silent(site: Site, subject: Subject, up_to: Epoch) -> tuple[Effect, ...]:
    old = declaration(subject.entry.name, subject.entry.text)
    heads = site.manifest.at(up_to).heads if up_to else {}
    return effects_of(old, subject.decl, up_to, heads)


def _new_features(site: Site, subject: Subject) -> tuple[str, ...]:
    live = site.tables.open(site.lake.path(f"projection/{subject.entry.name}"))
    known = {*(live.protocol().reader_features or ())} if live is not None else set()
    types = {each.name: each.type for each in subject.plan.columns}
    return tuple(name for name in features_of(types) if name not in known)


def input_rows(
    site: Site, subject: Subject, up_to: Epoch, *, after: Epoch = BEFORE_ALL
) -> tuple[int, int]:
    """Count the rows of the epochs (after, up_to], and those that came later."""
    read = later = 0
    opened = (site.tables.open(site.lake.path(name)) for name in input_tables(subject))
    for table in (each for each in opened if each is not None):
        dataset = dataset_of(table)
        newer = dataset.count_rows(filter=pc.field(EPOCH) > int(up_to))
        known = dataset.count_rows(filter=pc.field(EPOCH) > int(after) if after else None)
        read += known - newer
        later += newer
    return read, later


def next_generation(site: Site, name: str) -> int:
    """Return a generation number that was never used for this projection."""
    used = [replay.generation for replay in ReplayBook(site.place, site.tables).of(name)]
    live = entry_of(site, name).generation if site.into is None else 0
    return max([live, *used]) + 1


def build_epoch(site: Site, subject: Subject) -> Epoch:
    """Return the epoch to build up to: the live generation's, so that both can be compared."""
    noted = noted_epoch(site, subject.entry.name, subject.entry.generation)
    most = reachable(site, subject)
    return most if noted is None else Epoch(min(noted, most))


def epoch_to_build(site: Site, subject: Subject) -> Epoch:
    """Return the epoch to build up to. Raises `Conflict` where a held table leaves none."""
    if epoch := build_epoch(site, subject):
        return epoch
    name = subject.entry.name
    refuse_held(site, f"generation {next_generation(site, name)} of {name}", subject)
    raise InvalidRequest(
        f"{name} has nothing to be built from yet", remedy="penstock wait --caught-up"
    )


def table_size(site: Site, name: str) -> InputSize:
    """Return rows and bytes of a table of the lake; none of one that is not there."""
    table = site.tables.open(site.lake.path(name))
    if table is None:
        return InputSize(name=name, rows=0, bytes=0, late=0)
    rows, size = size_of(table)
    dataset = dataset_of(table)
    late = dataset.count_rows(filter=pc.field(LATE)) if LATE in dataset.schema.names else 0
    return InputSize(name=name, rows=rows, bytes=size, late=late)
