"""The projection that is replayed: what is deployed under its name, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from kernel.errors import Conflict, InvalidRequest, NotFound
from kernel.positions import Epoch
from lake import storage
from lake.datasets import dataset_of
from lake.layout import Lake
from lake.tables import Tables, greatest, kept
from pipeline.commit.manifest import Manifest
from pipeline.commit.manifest_rows import TYPED, Projected
from pipeline.ddl.held_tables import Hold
from pipeline.typed.columns import EPOCH, LATE
from pipeline.verification.large_states import LargeStates
from projections.run.catalog import PROJECTION, DeployedCatalog, Deployment, Entry
from projections.run.derived_holds import covered, holds_on
from projections.run.input_rows import input_tables as tables_of_plan
from projections.run.input_rows import table_of
from projections.run.notes import ended_at
from projections.run.relations import LATENESS, LakeCatalog
from projections.run.targets import Target
from projections.serve.standings import unknown_projection
from projections.sql.plans.declared_relations import DeclaredCatalog
from projections.sql.plans.plan import InputKind, Plan, plan
from projections.sql.statements.declarations import ProjectionDecl
from projections.sql.statements.lineage import read_by, readers_of, streams_named
from projections.sql.statements.parse import parse_script
from projections.sql.statements.sink_circles import check_sink_circles, check_sinks_apart
from projections.sql.words.catalog import Column
from replay.generations import build_app, elsewhere, generation_name, live_app, version_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A lake to replay in. `fields`: columns of registered event types, as the live runner has
    them; without a registry those of types that occurred are enough for most projections.
    `lateness`: of inputs that declare none. `large`: who hashes tables that are large. `into`:
    another lake that takes what is built, with the book of it; this one is only read then.
    `coming`: projections that are seen as if these entries were deployed already."""

    lake: Lake
    tables: Tables = field(default_factory=Tables)
    fields: Mapping[str, pa.Schema] = field(default_factory=dict)
    lateness: timedelta = LATENESS
    large: LargeStates | None = None
    into: Lake | None = None
    coming: Mapping[str, Entry] = field(default_factory=dict)

    @property
    def place(self) -> Lake:
        """The lake that takes what is built."""
        return self.into or self.lake

    @property
    def manifest(self) -> Manifest:
        """The lake's manifest."""
        return Manifest(self.lake, self.tables)

    @property
    def deployed(self) -> DeployedCatalog:
        """What is deployed."""
        return DeployedCatalog(self.lake, self.tables, self.coming)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A deployed projection, with the query of the generation in question planned."""

    entry: Entry
    decl: ProjectionDecl
    plan: Plan
    catalog: LakeCatalog


def entry_of(site: Site, name: str) -> Entry:
    """Return what is deployed under a name. Raises `NotFound`."""
    entries = {e.name: e for e in site.deployed.entries() if e.kind == PROJECTION}
    if name not in entries:
        raise unknown_projection(name, entries)
    return entries[name]


def subject_of(site: Site, name: str, text: str | None = None) -> Subject:
    """Plan a deployed projection, with the deployed query or with another one."""
    entry = entry_of(site, name)
    deployment = site.deployed.deployment()
    decl = declaration(name, text or entry.text)
    typed = _typed(site)
    if typed is None:
        raise NotFound("typed tables have not been made yet", remedy="penstock wait --caught-up")
    catalog = LakeCatalog(
        site.lake,
        site.tables,
        deployment,
        typed=[*_typed_tables(site, typed)],
        fields=site.fields,
        lateness=site.lateness,
    )
    # What is built elsewhere takes nobody's place: neither readers nor sinks have to go with it.
    alone = site.into is not None
    planned = _planned(decl, deployment, catalog, alone=alone)
    return Subject(entry=entry, decl=decl, plan=planned, catalog=catalog)


def _typed_tables(site: Site, typed: Projected) -> set[str]:
    """Return the typed tables that there are; of held ones the note does not tell."""
    names = {name for name in typed.tables if name.startswith("typed/")}
    if typed.held:
        folders = storage.folders_in(f"{site.lake.root}/typed")
        there = {site.lake.name_at(f"typed/{folder}") for folder in folders}
        names |= {name for name in there if covered(name, typed.held)}
    return names


def declaration(name: str, text: str) -> ProjectionDecl:
    """Read the one projection called `name` from SQL text. Raises `InvalidRequest`."""
    for decl in parse_script(text, origin=f"projection {name}").projections:
        if decl.name == name:
            return decl
    raise InvalidRequest(
        f"the SQL declares no projection {name}", remedy=f"Write CREATE PROJECTION {name} …"
    )


def own_statement(name: str, text: str) -> str:
    """Return what of some SQL text declares the projection `name`: others are deployed apart.

    Raises `InvalidRequest`.
    """
    script = parse_script(text, origin=f"projection {name}")
    alone = len(script.projections) + len(script.sources) == 1
    return text if alone else declaration(name, text).text


def generation_target(
    site: Site,
    subject: Subject,
    generation: int,
    up_to: Epoch,
    *,
    include_late: bool,
    ended_us: int | None = None,
    computed: bool = True,
) -> Target:
    """Return where a generation is built, the tables it reads pinned to what they were at an epoch.

    `ended_us` is the watermark that it begins with: see `ended_before`. Rows that are copied and
    not `computed` read no tables. Raises `NotFound` when one of that epoch is not kept any more.
    """
    name = generation_name(subject.entry.name, generation)
    app_id = build_app(subject.entry.name, generation)
    versions = {}
    for item in subject.plan.inputs if computed else ():
        if item.kind is InputKind.STREAM:
            continue
        read = table_of(item)
        if item.kind is InputKind.PROJECTION:
            version = _version_noted(site, item.name, up_to)
        else:
            version = version_before(site.lake.path(read), read, up_to)
        if version is None:
            raise _not_kept(subject.entry.name, read, up_to)
        versions[read] = version
    return Target(
        name=name,
        path=site.place.path(name),
        # Numbers elsewhere are others than here, where notes are found by them.
        app_id=app_id if site.into is None else elsewhere(app_id),
        include_late=include_late,
        versions=versions,
        ended_us=ended_us,
    )


def ended_before(site: Site, subject: Subject, up_to: Epoch) -> int | None:
    """Return the watermark that the final rows of the live generation had at an epoch.

    A generation that replaces it begins with that, where it reads the same streams: a watermark
    says nothing of others.
    """
    entry, catalog = subject.entry, subject.catalog
    queries = subject.decl.query, declaration(entry.name, entry.text).query
    ours, theirs = ({catalog.terms(n).name for n in streams_named(query)} for query in queries)
    if not subject.plan.final or ours != theirs:
        return None
    return ended_at(site.manifest, live_app(entry.name, entry.generation), up_to)


def input_tables(subject: Subject) -> list[str]:
    """Return the tables that a projection reads: typed ones, histories, other projections."""
    return tables_of_plan(subject.plan, subject.catalog)


def reachable(site: Site, subject: Subject) -> Epoch:
    """Return the epoch up to which a projection can be brought: where all that it reads is.

    A held table lacks the epochs since its hold. Its rows come under them once it is released, and
    would be missed for good by who has passed them.
    """
    typed = _typed(site)
    if typed is None:
        return Epoch(0)
    held = holds_on(subject.plan, typed.held).values()
    epochs = [typed.epoch, *(Epoch(max(hold.from_epoch - 1, 0)) for hold in held)]
    for name in read_by(subject.plan):
        epochs.append(noted_epoch(site, name, entry_of(site, name).generation) or Epoch(0))
    return min(epochs)


def typed_head(site: Site) -> Epoch:
    """Return the epoch up to which typed and history tables were brought."""
    typed = _typed(site)
    return typed.epoch if typed is not None else Epoch(0)


def noted_epoch(site: Site, name: str, generation: int) -> Epoch | None:
    """Return the epoch up to which a live generation is; None before its first run.

    The manifest knows it, not the table's cursor: a run without new input commits nothing.
    """
    run = site.manifest.projected().get(live_app(name, generation))
    return run.epoch if run is not None else None


def anything_new(site: Site, subject: Subject, after: Epoch) -> bool:
    """Say, from file statistics, whether any input has rows that became visible after an epoch.

    Of another projection that does not tell: rows may have gone. Nor of a held table, whose rows
    are yet to come; nor of final rows, which a watermark brings that passes them.
    """
    if subject.plan.final or read_by(subject.plan) or holds_of(site, subject):
        return True
    tables = [site.tables.open(site.lake.path(name)) for name in input_tables(subject)]
    newest = [greatest(table, EPOCH) for table in tables if table is not None]
    return any(epoch is not None and epoch > after for epoch in newest)


def has_late_rows(site: Site, subject: Subject, up_to: Epoch) -> bool:
    """Say whether streams have late rows up to an epoch that stay out of a projection's rows.

    A projection without state has them all; of histories they stay out of every generation.
    """
    if not subject.plan.stateful:
        return False
    where = pc.field(LATE) & (pc.field(EPOCH) <= int(up_to))
    streams = (one.name for one in subject.plan.inputs if one.kind is InputKind.STREAM)
    names = (name for stream in streams for name in subject.catalog.members(stream))
    tables = (site.tables.open(site.lake.path(name)) for name in names)
    return any(
        table is not None and dataset_of(table).count_rows(filter=where) > 0 for table in tables
    )


def _typed(site: Site) -> Projected | None:
    """Return how far typed and history tables were brought, and their holds; None before that."""
    return site.manifest.projected().get(TYPED)


def holds_of(site: Site, subject: Subject) -> Mapping[str, Hold]:
    """Return the holds of typed and history tables that a projection reads."""
    typed = _typed(site)
    return {} if typed is None else holds_on(subject.plan, typed.held)


def _version_noted(site: Site, name: str, up_to: Epoch) -> int | None:
    """Return the version that a projection's table had at an epoch; None where it is not kept."""
    for generation in site.deployed.published().get(name, []):
        runs = [r for r in site.manifest.history_of(live_app(name, generation)) if r.epoch <= up_to]
        if runs:
            version = runs[-1].tables[f"projection/{name}"].version
            return version if kept(site.lake.path(f"projection/{name}"), version) else None
    return None


def _not_kept(name: str, table: str, epoch: Epoch) -> NotFound:
    return NotFound(
        f"{name} stands at epoch {epoch}, and what {table} was then is not kept any more "
        "(lake.retention_days)",
        remedy=f"Bring {name} up to now: penstock projection resume {name}, penstock wait "
        "--caught-up, then the same command again.",
    )


def _planned(
    decl: ProjectionDecl, deployment: Deployment, catalog: LakeCatalog, *, alone: bool
) -> Plan:
    """Plan a projection, which may have another query than the one that is deployed.

    Raises `Conflict`, unless it is to stand `alone`, where projections that read it could not be
    compiled with that query, or would have columns of other types, and where its sink is another
    one's or feeds it.
    """
    deployed = deployment.declared
    sources = tuple(deployment.sources.values())
    declared = DeclaredCatalog(catalog, sources, [*{**deployed, decl.name: decl}.values()])
    made = plan(decl, declared)
    if alone or deployed.get(decl.name) == decl:
        return made
    check_declared_sinks(decl, deployment)
    as_it_is = DeclaredCatalog(catalog, sources, [*deployed.values()])
    for name in readers_of(decl.name, deployed.values()):
        drop = f"drop {name} first: penstock projection drop {name} --yes"
        try:
            columns = plan(deployed[name], declared).columns
        except InvalidRequest as error:
            if error.message == _refusal(deployed[name], as_it_is):
                continue  # It stands still for another reason.
            raise Conflict(
                f"{name} reads {decl.name}, and not with this query: {error.message}",
                remedy=f"Give the new query what {name} needs, or {drop}",
            ) from error
        changed = _retyped(_columns(deployed[name], as_it_is), columns)
        if changed:
            raise Conflict(
                f"{name} reads {decl.name}, and with this query its columns have other types: "
                + ", ".join(changed),
                remedy=f"Convert them in the new query, as CAST(… AS INT), or {drop}",
            )
    return made


def check_deployable(site: Site, name: str, text: str) -> None:
    """Raise `Conflict` where a query is in the way of what is deployed, as it goes live.

    Of another one's sink, or of projections that read this one: they may have been deployed since
    its generation was built, and could not be compiled with it, or would have other types.
    """
    decl, deployment = declaration(name, text), site.deployed.deployment()
    check_declared_sinks(decl, deployment)
    readers = readers_of(name, deployment.declared.values())
    if not readers or deployment.declared.get(name) == decl:
        return
    try:
        subject_of(site, name, text)
    except InvalidRequest as error:
        raise Conflict(
            f"{', '.join(readers)} read {name}, whose query cannot go live: {error.message}",
            remedy=f"Drop what reads it first: penstock projection drop {readers[0]} --yes; or "
            f"build another query: penstock replay apply {name} --sql FILE",
        ) from error


def check_declared_sinks(decl: ProjectionDecl, deployment: Deployment) -> None:
    """Raise `Conflict` where sinks would get in each other's way with this query deployed."""
    projections = {**deployment.declared, decl.name: decl}.values()
    check_sinks_apart(projections)
    check_sink_circles(deployment.sources.values(), projections)


def _columns(decl: ProjectionDecl, declared: DeclaredCatalog) -> tuple[Column, ...]:
    """Return the columns of a deployed projection; none where it does not compile any more."""
    try:
        return plan(decl, declared).columns
    except InvalidRequest:
        return ()


def _refusal(decl: ProjectionDecl, declared: DeclaredCatalog) -> str | None:
    """Return why a deployed projection does not compile any more; None where it does."""
    try:
        plan(decl, declared)
    except InvalidRequest as error:
        return error.message
    return None


def _retyped(before: tuple[Column, ...], after: tuple[Column, ...]) -> list[str]:
    """Describe the columns whose types are known and differ."""
    types = {each.name: each.type for each in before}
    return [
        f"{each.name} was {types[each.name]}, is {each.type}"
        for each in after
        if each.type and types.get(each.name, "") not in ("", each.type)
    ]
