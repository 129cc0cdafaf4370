"""`penstock wait`: until the tables have everything that was recorded."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from apps.accounts import account, standing_still
from apps.capture import capture_site
from apps.cli.commands import CommandCall, commands
from apps.cli.output import shower

if TYPE_CHECKING:
    from service.caught_up import Behind

_SAME_EVERY_S = 10.0


def wait(
    call: CommandCall,
    caught_up: Annotated[
        bool,
        typer.Option("--caught-up", help="All that was recorded by now (the default)."),
    ] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait at most.")] = 300.0,
) -> None:
    """Wait until all that was committed by now is in all tables and sinks.

    Exit code 5 when the time is over, naming what is behind. Paused projections are not waited for,
    nor are those that wait for their own trigger, or for the first row of an input: they are named.
    """
    # Reading the lake takes a second to load, which `--help` should not pay.
    from service.caught_up import Accounts
    from service.caught_up import wait as wait_until

    del caught_up  # there is nothing else to wait for in this version
    found = call.settings
    accounts = Accounts(
        pipeline=partial(account, found, "pipeline"), still=partial(standing_still, found)
    )
    done = wait_until(
        capture_site(found),
        accounts,
        timeout_s=timeout,
        show=shower(_line, same_every_s=_SAME_EVERY_S, gist=_gist),
    )
    text = f"caught up at epoch {done.epoch}, position {done.head}, after {done.waited_s:.1f} s"
    lines = [text, *(f"{name} {reason}" for name, reason in done.waiting.items())]
    call.answer(asdict(done), text="\n".join(lines))


def _line(behind: Behind) -> str:
    missing = "; ".join(behind.missing)
    return f"{behind.events:,} events, {behind.seconds:.1f} s behind; {missing}"


def _gist(behind: Behind) -> object:
    """Return what a line says beside the seconds, which pass in any case."""
    return behind.events, tuple(behind.missing)


register = commands(wait)
