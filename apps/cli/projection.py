"""`penstock projection validate|explain|test`: SQL files checked, without a running stack.

Names and types are looked up in a catalog document (`--catalog`, else `.penstock/catalog.json` of
the workspace), or else in its lake. All files of one call are read together: sources may have a
file of their own. Commands import the SQL compiler when they run: it takes seconds, which `--help`
should not pay.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apps.cli import deployment, projection_test
from apps.cli.commands import CommandCall, commands
from apps.cli.options import Files
from apps.cli.sites import site_of
from kernel.errors import EXIT_USAGE, Misconfigured, NotFound
from projections.trial import validation
from projections.trial.sql_files import read_all_that_can_be, read_files

if TYPE_CHECKING:
    from projections.sql.operators.shape import Plan
    from projections.sql.plans.state_bounds import Measures
    from projections.sql.words.catalog import Catalog

CATALOG_FILE = "catalog.json"

CatalogFile = Annotated[
    Path | None,
    typer.Option("--catalog", help="A catalog document (default: the workspace's own)."),
]


def validate(call: CommandCall, files: Files, catalog: CatalogFile = None) -> None:
    """Check SQL files: grammar, and with a catalog also names, keys and what can be compiled."""
    from projections.trial.declared_inputs import beginnings_of, declared_catalog

    known = workspace_catalog(call, catalog)
    declared = read_all_that_can_be(files)
    results = [*validation.unread(declared.refused)]
    relations = None if known is None else declared_catalog(known, declared)
    for decl in declared.projections:
        result, made = validation.checked(decl, known, relations, declared)
        warnings = () if made is None else beginnings_of(made, known, declared.sources)
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
    call.answer(answer, text="\n".join(lines))
    if failed:
        raise typer.Exit(EXIT_USAGE)


def explain(
    call: CommandCall,
    files: Files,
    name: Annotated[str | None, typer.Option(help="Only this projection.")] = None,
    catalog: CatalogFile = None,
) -> None:
    """Show how projections are kept: inputs, strategy, state, late rows, cost and compiled SQL."""
    from projections.sql.plans.explain import document, page
    from projections.sql.plans.plan import plan
    from projections.trial.declared_inputs import beginnings_of, declared_catalog, lateness_of

    known = workspace_catalog(call, catalog)
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
    default, found = call.settings.lateness, []
    late = lateness_of(default, known, declared.sources)
    for decl in chosen:
        made = plan(decl, declared_catalog(known, declared))
        made = replace(made, notes=made.notes + beginnings_of(made, known, declared.sources))
        found.append((made, late, _measured(call, known, made)))
    call.answer(
        [document(*each) for each in found],
        text="\n\n".join(page(*each) for each in found),
    )


def workspace_catalog(call: CommandCall, given: Path | None) -> Catalog | None:
    """Read the catalog document that was named, or the workspace's, or else ask its lake.

    None when there is neither. Raises `NotFound` for a named file that is absent, `Misconfigured`
    for one that is malformed.
    """
    from lake import storage
    from projections.sql.words.catalog import catalog_from
    from replay.deployment import lake_catalog

    found = call.settings
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


def _measured(call: CommandCall, known: Catalog, made: Plan) -> Measures:
    """Measure the inputs of a plan in the workspace's lake, where that is what is known."""
    from projections.run.input_measures import measured
    from projections.run.relations import LakeCatalog

    if not isinstance(known, LakeCatalog):
        return {}
    site = site_of(call.settings, fields=False)
    return measured(site.lake, site.tables, made, known)


register = commands(projection=[validate, explain, projection_test.test_, *deployment.MEMBERS])
