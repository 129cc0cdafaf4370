"""`penstock token`: what calls of the HTTP services carry."""

from __future__ import annotations

import sys

import typer

from apps import settings
from apps.access import token_of
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("token")(token)


def token(workspace: WorkspaceOption = None, as_json: JsonOption = False) -> None:
    """Print the workspace's token: curl -H "authorization: Bearer $(penstock token)" …

    It is made at first use and lies in .penstock/token, which only you may read. The commands and
    the Python client find it by themselves.
    """
    found = settings.load(workspace)
    if found.text("service.auth") == "none":
        print("service.auth is none: nobody asks for a token", file=sys.stderr)
    shown = token_of(found)
    emit({"token": shown}, as_json=as_json, text=shown)
