"""`penstock wait`: until the tables have everything that was recorded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from apps import settings
from apps.cli.options import JsonOption, WorkspaceOption
from apps.cli.output import emit

if TYPE_CHECKING:
    from apps.caught_up import Behind

SHOW_EVERY_S = 1.0
SHOW_SAME_EVERY_S = 10.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("wait")(wait)


def wait(
    caught_up: Annotated[
        bool,
        typer.Option("--caught-up", help="All that was recorded by now (the default)."),
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 300.0,
    workspace: WorkspaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until all that was committed by now is in all tables and sinks.

    Exit code 5 when the time is over, naming what is behind. Paused projections are not waited for,
    nor are those that wait for their own trigger: they are named.
    """
    # Reading the lake takes a second to load, which `--help` should not pay.
    from apps.caught_up import wait as wait_until

    del caught_up  # there is nothing else to wait for in this version
    done = wait_until(settings.load(workspace), timeout_s=timeout, show=_shower())
    text = f"caught up at epoch {done.epoch}, position {done.head}, after {done.waited_s:.1f} s"
    lines = [text, *(f"{name} {reason}" for name, reason in done.waiting.items())]
    emit(asdict(done), as_json=as_json, text="\n".join(lines))


def _shower() -> Callable[[Behind], None]:
    """Show what is missing once a second while it changes, else now and then."""
    shown, shown_at = "", time.monotonic()

    def show(behind: Behind) -> None:
        nonlocal shown, shown_at
        missing = "; ".join(behind.missing)
        line = f"{behind.events:,} events, {behind.seconds:.1f} s behind; {missing}"
        pause = SHOW_EVERY_S if line != shown else SHOW_SAME_EVERY_S
        if time.monotonic() - shown_at < pause:
            return
        shown, shown_at = line, time.monotonic()
        print(line, file=sys.stderr, flush=True)

    return show
