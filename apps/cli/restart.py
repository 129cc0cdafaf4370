"""`penstock restart PART`: one part of the local stack, stopped and started again."""

from __future__ import annotations

from typing import Annotated

import typer

from apps.cli.commands import CommandCall, commands
from apps.cli.output import tell
from apps.cli.stack import explained


def restart(
    call: CommandCall,
    part: Annotated[str, typer.Argument(help="A part, as penstock status names it.")],
    timeout: Annotated[float, typer.Option(help="Seconds to wait for readiness.")] = 600.0,
) -> None:
    """Stop one part of the local stack and start it again.

    Returns when it is ready. The other parts go on meanwhile. Clients of the service try again by
    themselves.
    """
    # Only this call needs what steers a stack.
    from stack import control

    found = call.settings

    with explained(found.workspace):
        told = control.restart(found.workspace, part, timeout_s=timeout, report=tell)
    call.answer(told, text=f"{part}: {told['state']}, process {told['pid']}")


register = commands(restart)
