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

from apps.accounts import account
from apps.cli.commands import CommandCall
from apps.cli.options import Files, ProjectionName
from apps.cli.output import Columns, fields, listing
from apps.cli.sites import site_of
from projections.trial.sql_files import read_files
from service import lake_documents


def apply(call: CommandCall, files: Files) -> None:
    """Deploy the sources and projections that SQL files declare; the same again changes nothing.

    A changed query is refused: it becomes a new generation by `penstock replay apply`.
    """
    from replay import deployment

    declared = read_files(files)
    for error in declared.refused:
        raise error
    workplace = call.settings
    found = deployment.apply(
        site_of(workplace),
        declared.sources,
        declared.projections,
        prefix=workplace.text("kafka.topic_prefix"),
    )
    columns: Columns = {
        "kind": "kind",
        "name": "name",
        "outcome": lambda each: each.outcome.value,
        "waits for": "waits",
    }
    nothing = "the files declare nothing; a projection begins with CREATE PROJECTION"
    call.answer([asdict(each) for each in found], text=listing(found, columns, nothing=nothing))


def list_(call: CommandCall) -> None:
    """List projections: generation, epoch, lag, rows, why one stands still."""
    found = call.settings
    documents = lake_documents.projection_list(call.lake, partial(account, found, "pipeline"))
    shown = ("status", "generation", "epoch", "lag_events", "lag_s", "rows", "stands_still")
    columns: Columns = {"projection": "name", **{each.replace("_", " "): each for each in shown}}
    nothing = "no projection is deployed; deploy one: penstock projection apply FILE.sql"
    call.answer(documents, text=listing(documents, columns, nothing=nothing))


def status(call: CommandCall, name: ProjectionName) -> None:
    """Show one projection: its lag, rows and state, and the pipeline's last error.

    `lag_events` are the rows of the log that it has not taken in, `lag_s` how old the oldest of
    them is, and `late_s` by how much that is more than its freshness.
    """
    found = call.settings
    shown = lake_documents.projection_status(call.lake, name, partial(account, found, "pipeline"))
    call.answer(shown, text=fields(shown))


def pause(call: CommandCall, name: ProjectionName) -> None:
    """Stop keeping a projection up to date; its table stays as it is."""
    from projections.run.catalog import PAUSED

    _set_status(call, name, PAUSED)


def resume(call: CommandCall, name: ProjectionName) -> None:
    """Go on with a paused projection, from where it stopped."""
    from projections.run.catalog import LIVE

    _set_status(call, name, LIVE)


def drop(
    call: CommandCall,
    name: ProjectionName,
    yes: Annotated[bool, typer.Option("--yes", help="Really drop it.")] = False,
) -> None:
    """Take a projection out of the catalog. Its table's files stay."""
    if not yes:
        from projections.serve.standings import standing

        standing(call.lake, name)  # One that is not there wants no confirmation.
        what = f"{name} would no longer be kept up to date; its table stays"
        call.refuse_unconfirmed(what)
    from projections.run.catalog import DROPPED

    _set_status(call, name, DROPPED)


def _set_status(call: CommandCall, name: str, status: str) -> None:
    from projections.serve.standings import standing

    standing(call.lake, name)  # It refuses a name that is not deployed.
    entry = call.catalog.set_status(name, status)
    document = {"name": name, "status": entry.status, "generation": entry.generation}
    call.answer(document, text=f"{name} is {entry.status}")


MEMBERS = (apply, list_, status, pause, resume, drop)
"""Commands of the group `projection`."""
