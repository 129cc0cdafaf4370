"""`penstock projection apply|list|status|pause|resume|drop`: what the pipeline keeps up to date.

The commands append to the lake's catalog; a running pipeline follows within a second, a stopped one
when it starts. Commands import what reads the lake when they run: it takes seconds, which `--help`
should not pay.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from apps import settings
from apps.accounts import account
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, fields, refuse_unconfirmed, table
from apps.cli.sites import site_of
from apps.cli.sql_files import Files, read_files
from lake.layout import Lake
from service import lake_documents

Name = Annotated[str, typer.Argument(metavar="NAME", help="The projection.")]


def add_to(group: typer.Typer) -> None:
    """Add the commands to the group `projection`."""
    group.command("apply")(apply)
    group.command("list")(list_)
    group.command("status")(status)
    group.command("pause")(pause)
    group.command("resume")(resume)
    group.command("drop")(drop)


def apply(files: Files, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Deploy the sources and projections that SQL files declare; the same again changes nothing.

    A changed query is refused: it becomes a new generation by `penstock replay apply`.
    """
    from replay import deployment

    declared = read_files(files)
    for error in declared.refused:
        raise error
    workplace = settings.load(workspace)
    found = deployment.apply(
        site_of(workplace),
        declared.sources,
        declared.projections,
        prefix=workplace.text("kafka.topic_prefix"),
    )
    rows = [[d.kind, d.name, d.outcome.value, d.waits] for d in found]
    headings = ["kind", "name", "outcome", "waits for"]
    nothing = "the files declare nothing; a projection begins with CREATE PROJECTION"
    emit([asdict(d) for d in found], as_json=as_json, text=table(headings, rows, nothing=nothing))


def list_(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """List projections: generation, epoch, lag, rows, why one stands still."""
    found = settings.load(workspace)
    documents = lake_documents.projection_list(
        Lake.named(found.lake), partial(account, found, "pipeline")
    )
    shown = ("name", "status", "generation", "epoch", "lag_events", "lag_s", "rows", "stands_still")
    rows = [[document[column] for column in shown] for document in documents]
    columns = "projection,status,generation,epoch,lag events,lag s,rows,stands still"
    headings = columns.split(",")
    nothing = "no projection is deployed; deploy one: penstock projection apply FILE.sql"
    text = table(headings, rows, nothing=nothing)
    emit(documents, as_json=as_json, text=text)


def status(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Show one projection: its lag, rows and state, and the pipeline's last error.

    `lag_events` are the rows of the log that it has not taken in, `lag_s` how old the oldest of
    them is, and `late_s` by how much that is more than its freshness.
    """
    found = settings.load(workspace)
    shown = lake_documents.projection_status(
        Lake.named(found.lake), name, partial(account, found, "pipeline")
    )
    emit(shown, as_json=as_json, text=fields(shown))


def pause(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Stop keeping a projection up to date; its table stays as it is."""
    from projections.serve.standings import PAUSED
    from projections.serve.statuses import set_status

    found = set_status(Lake.named(settings.load(workspace).lake), name, PAUSED)
    _emit_status(name, found.status, found.generation, as_json=as_json)


def resume(name: Name, workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Go on with a paused projection, from where it stopped."""
    from projections.serve.standings import LIVE
    from projections.serve.statuses import set_status

    found = set_status(Lake.named(settings.load(workspace).lake), name, LIVE)
    _emit_status(name, found.status, found.generation, as_json=as_json)


def drop(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Really drop it.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a projection out of the catalog. Its table's files stay."""
    from projections.serve.standings import standing

    lake = Lake.named(settings.load(workspace).lake)
    standing(lake, name)  # One that is not there wants no confirmation.
    if not yes:
        what = f"{name} would no longer be kept up to date; its table stays"
        refuse_unconfirmed(what, as_json=as_json)
    # Whether others read it stands in their statements.
    from lake.tables import Tables
    from projections.run.catalog import DROPPED, DeployedCatalog

    entry = DeployedCatalog(lake, Tables()).set_status(name, DROPPED)
    _emit_status(name, entry.status, entry.generation, as_json=as_json)


def _emit_status(name: str, status: str, generation: int, *, as_json: bool) -> None:
    document = {"name": name, "status": status, "generation": generation}
    emit(document, as_json=as_json, text=f"{name} is {status}")
