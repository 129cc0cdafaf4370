"""`penstock store …`: the event store itself."""

from __future__ import annotations

from typing import Annotated

import typer

from apps import settings
from apps.cli.groups import Group
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit, refuse_unconfirmed


def register(app: typer.Typer) -> None:
    """Add the commands."""
    store = typer.Typer(cls=Group, help="The event store itself.", no_args_is_help=True)
    store.command("renew-id")(renew_id)
    app.add_typer(store, name="store")


def renew_id(
    yes: Annotated[bool, typer.Option("--yes", help="Really give it a new id.")] = False,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give the store a new id: after it was restored, or lost events in a fail-over.

    Positions that were lost will be used again. Under a new id nobody downstream takes what comes
    there for what was there. Restart the store's services afterwards.
    """
    if not yes:
        what = "the store would be another one to all who follow it"
        refuse_unconfirmed(what, "penstock store renew-id --yes", as_json=as_json)
    # Only this call needs PostgreSQL's client.
    import asyncio

    from eventstore.postgres.identity import renew_id as renewed

    store_id = asyncio.run(renewed(settings.load(workspace).required("postgres.dsn")))
    text = f"the store's id is {store_id} now; restart its services"
    emit({"store_id": store_id}, as_json=as_json, text=text)
