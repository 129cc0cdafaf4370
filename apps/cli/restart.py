"""`penstock restart PART`: one part of the local stack, stopped and started again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from apps import settings
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit
from apps.cli.stack import explained


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(restart)


def restart(
    part: Annotated[str, typer.Argument(help="A part, as penstock status names it.")],
    timeout: Annotated[float, typer.Option(help="Seconds to wait for readiness.")] = 600.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop one part of the local stack and start it again.

    Returns when it is ready. The other parts go on meanwhile. Clients of the service try again by
    themselves.
    """
    # Only this call needs what steers a stack.
    from stack import control

    found = settings.load(workspace)

    def report(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with explained(found.workspace):
        told = control.restart(found.workspace, part, timeout_s=timeout, report=report)
    emit(told, as_json=as_json, text=f"{part}: {told['state']}, process {told['pid']}")
