"""The projection that is replayed: what is deployed under its name, and what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from kernel.errors import InvalidRequest, NotFound
from kernel.positions import Epoch
from projections.log.layout import Lake
from projections.log.tables import Tables, greatest
from projections.log.typed_columns import EPOCH
from projections.runner.catalog import PROJECTION, DeployedCatalog, Deployment, Entry
from projections.runner.manifest import TYPED, Manifest
from projections.runner.projector import Target
from projections.runner.projector import input_tables as tables_of_plan
from projections.runner.relations import LakeCatalog
from projections.serve.standings import unknown_projection
from projections.sql.catalog import DeclaredCatalog
from projections.sql.parse import ProjectionDecl, parse_script
from projections.sql.plan import InputKind, Plan, plan
from replay.generations import build_app, generation_name, live_app, version_before


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A lake to replay in. `fields`: columns of registered event types, as the live runner has
    them; without a registry those of types that occurred are enough for most projections."""

    lake: Lake
    tables: Tables = field(default_factory=Tables)
    fields: Mapping[str, pa.Schema] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        """The lake's manifest."""
        return Manifest(self.lake, self.tables)

    @property
    def deployed(self) -> DeployedCatalog:
        """What is deployed."""
        return DeployedCatalog(self.lake, self.tables)


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
    typed = site.manifest.projected().get(TYPED)
    if typed is None:
        raise NotFound("typed tables have not been made yet", remedy="penstock wait --caught-up")
    catalog = LakeCatalog(
        site.lake,
        site.tables,
        deployment,
        typed=[table for table in typed.tables if table.startswith("typed/")],
        fields=site.fields,
    )
    return Subject(
        entry=entry, decl=decl, plan=_planned(decl, deployment, catalog), catalog=catalog
    )


def declaration(name: str, text: str) -> ProjectionDecl:
    """Read the one projection called `name` from SQL text. Raises `InvalidRequest`."""
    for decl in parse_script(text, origin=f"projection {name}").projections:
        if decl.name == name:
            return decl
    raise InvalidRequest(
        f"the SQL declares no projection {name}", remedy=f"Write CREATE PROJECTION {name} …"
    )


def generation_target(
    site: Site, subject: Subject, generation: int, up_to: Epoch, *, include_late: bool
) -> Target:
    """Return where a generation is built, its histories pinned to what they were at an epoch.

    Raises `NotFound` when a history of that epoch is not kept any more.
    """
    name = generation_name(subject.entry.name, generation)
    versions = {}
    for item in subject.plan.inputs:
        if item.kind is InputKind.HISTORY:
            history = f"history/{item.name}"
            version = version_before(site.lake.path(history), history, up_to)
            if version is None:
                raise _not_kept(subject.entry.name, history, up_to)
            versions[history] = version
    return Target(
        name=name,
        path=site.lake.path(name),
        app_id=build_app(subject.entry.name, generation),
        include_late=include_late,
        versions=versions,
    )


def input_tables(subject: Subject) -> list[str]:
    """Return the typed and history tables that a projection reads."""
    return tables_of_plan(subject.plan, subject.catalog)


def typed_head(site: Site) -> Epoch:
    """Return the epoch up to which typed and history tables were brought."""
    typed = site.manifest.projected().get(TYPED)
    return typed.epoch if typed is not None else Epoch(0)


def noted_epoch(site: Site, name: str, generation: int) -> Epoch | None:
    """Return the epoch up to which a live generation is; None before its first run.

    The manifest knows it, not the table's cursor: a run without new input commits nothing.
    """
    run = site.manifest.projected().get(live_app(name, generation))
    return run.epoch if run is not None else None


def anything_new(site: Site, subject: Subject, after: Epoch) -> bool:
    """Say, from file statistics, whether any input has rows that became visible after an epoch."""
    tables = [site.tables.open(site.lake.path(name)) for name in input_tables(subject)]
    newest = [greatest(table, EPOCH) for table in tables if table is not None]
    return any(epoch is not None and epoch > after for epoch in newest)


def _not_kept(name: str, history: str, epoch: Epoch) -> NotFound:
    return NotFound(
        f"{name} stands at epoch {epoch}, and what {history} was then is not kept any more "
        "(lake.retention_days)",
        remedy=f"Bring {name} up to now: penstock projection resume {name}, penstock wait "
        "--caught-up, then the same command again.",
    )


def _planned(decl: ProjectionDecl, deployment: Deployment, catalog: LakeCatalog) -> Plan:
    return plan(decl, DeclaredCatalog(catalog, tuple(deployment.sources.values())))
