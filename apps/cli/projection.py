"""`penstock projection validate|explain|test`: SQL files checked, without a running stack.

Names and types are looked up in a catalog document (`--catalog`, else `.penstock/catalog.json` of
the workspace), or else in its lake. All files of one call are read together: sources may have a
file of their own. Commands import the SQL compiler when they run: it takes seconds, which `--help`
should not pay.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli import deployment, projection_test, validation
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit
from apps.cli.sites import site_of
from apps.cli.sql_files import Declared, Files, read_all_that_can_be, read_files
from kernel.errors import EXIT_USAGE, Misconfigured, NotFound

if TYPE_CHECKING:
    from projections.sql.catalog import Catalog
    from projections.sql.declarations import SourceDecl
    from projections.sql.declared_relations import DeclaredCatalog
    from projections.sql.shape import Plan
    from projections.sql.state_bounds import Lateness, Measures

CATALOG_FILE = "catalog.json"

CatalogFile = Annotated[
    Path | None,
    typer.Option("--catalog", help="A catalog document (default: the workspace's own)."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(cls=Group, help="Projections: SQL kept up to date as tables.")
    group.command("validate")(validate)
    group.command("explain")(explain)
    group.command("test")(projection_test.play)
    deployment.add_to(group)
    app.add_typer(group, name="projection")


def validate(
    files: Files,
    catalog: CatalogFile = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check SQL files: grammar, and with a catalog also names, keys and what can be compiled."""
    known = workspace_catalog(workspace, catalog)
    declared = read_all_that_can_be(files)
    results = [*validation.unread(declared.refused)]
    relations = None if known is None else _declared_catalog(known, declared)
    for decl in declared.projections:
        result, made = validation.checked(decl, known, relations, declared)
        warnings = () if made is None else _beginnings(made, known, declared.sources)
        results.append(result | ({"warnings": list(warnings)} if warnings else {}))
    failed = [result for result in results if not result["ok"]]
    lines = [line for result in results for line in validation.lines_of(result)]
    lines += validation.summary(results, declared)
    if known is None:
        lines.append("names and types were not checked: there is no catalog document (--catalog)")
    answer = {
        "sources": [source.name for source in declared.sources],
        "projections": results,
        "names_checked": known is not None,
    }
    emit(answer, as_json=as_json, text="\n".join(lines))
    if failed:
        raise typer.Exit(EXIT_USAGE)


def explain(
    files: Files,
    name: Annotated[str | None, typer.Option(help="Only this projection.")] = None,
    catalog: CatalogFile = None,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how projections are kept: inputs, strategy, state, late rows, cost and compiled SQL."""
    from projections.sql.explain import document, page
    from projections.sql.plan import plan

    known = workspace_catalog(workspace, catalog)
    if known is None:
        raise NotFound(
            "there is neither a lake nor a catalog document to look columns up in",
            remedy="Start the stack once, or name a document: --catalog FILE.json; its form is in "
            "docs/reference/sql.md.",
        )
    declared = read_files(files)
    for error in declared.refused:
        raise error
    chosen = [decl for decl in declared.projections if name in (None, decl.name)]
    if not chosen:
        raise NotFound(
            f"the files declare no projection {name or ''}".rstrip(),
            remedy="They declare: " + (", ".join(d.name for d in declared.projections) or "none"),
        )
    late, found = _lateness(workspace, known, declared.sources), []
    for decl in chosen:
        made = plan(decl, _declared_catalog(known, declared))
        made = replace(made, notes=made.notes + _beginnings(made, known, declared.sources))
        found.append((made, late, _measured(workspace, known, made)))
    emit(
        [document(*each) for each in found],
        as_json=as_json,
        text="\n\n".join(page(*each) for each in found),
    )


def workspace_catalog(workspace: Path | None, given: Path | None) -> Catalog | None:
    """Read the catalog document that was named, or the workspace's, or else ask its lake.

    None when there is neither. Raises `NotFound` for a named file that is absent, `Misconfigured`
    for one that is malformed.
    """
    from lake import storage
    from projections.sql.catalog import catalog_from
    from replay.deployment import lake_catalog

    found = settings.load(workspace)
    path = given or found.state_dir / CATALOG_FILE
    if not path.exists():
        if given is not None:
            raise NotFound(
                f"there is no catalog document {given}",
                remedy="Name a file that there is, or leave --catalog out to ask the lake.",
            )
        return lake_catalog(site_of(found)) if storage.exists(found.lake) else None
    try:
        return catalog_from(json.loads(path.read_text()))
    except ValueError as error:
        raise Misconfigured(f"{path} is not JSON: {error}") from error


def _declared_catalog(known: Catalog, files: Declared) -> DeclaredCatalog:
    """Return what files declare on what is known, with the projections that are deployed."""
    from projections.run.relations import LakeCatalog
    from projections.sql.declared_relations import DeclaredCatalog

    deployed = known.declared if isinstance(known, LakeCatalog) else {}
    projections = {**deployed, **{decl.name: decl for decl in files.projections}}
    return DeclaredCatalog(known, files.sources, [*projections.values()])


def _lateness(workspace: Path | None, known: Catalog, sources: Sequence[SourceDecl]) -> Lateness:
    """Return how late rows of a stream may be: as files, what is deployed or settings say."""
    from projections.run.relations import LakeCatalog
    from projections.sql.topics import log_of

    default = settings.load(workspace).lateness
    declared = {
        name: source.lateness
        for source in sources
        if source.lateness is not None
        for name in (source.name, source.on or log_of(source))
    }

    def late(name: str) -> timedelta:
        # A category's declaration is that of each of its types.
        above = ".".join(name.split(".")[:2]) if name.startswith("events.") else name
        own = declared.get(name, declared.get(above))
        if own is not None:
            return own
        return known.terms(name).lateness if isinstance(known, LakeCatalog) else default

    return late


def _measured(workspace: Path | None, known: Catalog, made: Plan) -> Measures:
    """Measure the inputs of a plan in the workspace's lake, where that is what is known."""
    from projections.run.input_measures import measured
    from projections.run.relations import LakeCatalog

    if not isinstance(known, LakeCatalog):
        return {}
    site = site_of(settings.load(workspace), fields=False)
    return measured(site.lake, site.tables, made, known)


def _beginnings(
    made: Plan, known: Catalog | None, sources: Sequence[SourceDecl]
) -> tuple[str, ...]:
    """Say of joined versions that are kept by commit time since when there are any.

    Versions by a column of the table's own (`event_time`) reach back as far as its rows do.
    """
    from projections.run.relations import LakeCatalog
    from projections.sql.declared_relations import DeclaredCatalog
    from projections.sql.shape import InputKind

    declared = {source.name: source for source in sources}
    notes = []
    for one in made.inputs:
        source = declared.get(one.name)
        if one.kind is not InputKind.HISTORY or not isinstance(known, LakeCatalog):
            continue
        relation = DeclaredCatalog(known, sources).history(one.name)
        if relation is None or relation.event_time != "valid_from":
            continue
        if source is None and not known.kept_by_commit_time(one.name):
            continue
        begins = known.begins(source.on if source is not None and source.on else one.name)
        since = "" if begins is None else f", at {begins.isoformat(timespec='milliseconds')}"
        notes.append(
            f"the versions of {one.name} begin where its capture did{since}: what is asked as of "
            "a time before finds none"
        )
    return tuple(notes)
