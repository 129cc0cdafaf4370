"""penstock demo: the whole system on a year of real flights, with every figure checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from apps.cli.commands import commands
from apps.cli.demo_options import (
    DEFAULT_FLIGHTS,
    DEFAULT_FOLDER,
    FEWEST_FLIGHTS,
    DemoOptions,
    LakePlace,
)
from apps.cli.options import JsonOption
from apps.cli.output import emit
from apps.cli.stack import PortBase
from kernel.errors import EXIT_FAILED, Misconfigured
from stack.ports import DEFAULT_BASE


def demo(
    flights: Annotated[
        int,
        typer.Option(min=FEWEST_FLIGHTS, help="How many flights of the year, from the first."),
    ] = DEFAULT_FLIGHTS,
    everything: Annotated[bool, typer.Option("--all", help="All 336,776 flights.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the stack up.")] = False,
    seed: Annotated[int, typer.Option(help="Decides which events come late.")] = 2013,
    port_base: PortBase = DEFAULT_BASE,
    offline: Annotated[bool, typer.Option(help="Use cached jars only.")] = False,
    workspace: Annotated[
        Path, typer.Option("--workspace", "-w", help="An empty folder, or that of an earlier demo.")
    ] = DEFAULT_FOLDER,
    lake: Annotated[
        LakePlace,
        typer.Option(help="Where the tables lie: a folder, or an S3 store of its own."),
    ] = LakePlace.FOLDER,
    as_json: JsonOption = False,
) -> None:
    """Run the whole system on real flights and check every figure. Exit code 1 if one is wrong."""
    options = DemoOptions(
        flights=None if everything else flights,
        folder=workspace,
        keep=keep,
        seed=seed,
        port_base=port_base,
        offline=offline,
        lake=lake,
    )
    try:
        # DuckDB, Arrow and Delta take a second to load, which other commands should not pay.
        from examples.flights.narration import Narration
        from examples.flights.run import run
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("examples"):
            raise
        raise Misconfigured(
            "the example is not part of this installation",
            remedy="Run the demo from a clone of the repository: make demo",
        ) from error
    narration = Narration(sys.stderr if as_json else sys.stdout)
    held = run(options, narration)
    if as_json:
        emit(narration.document(), as_json=True)
    if not held:
        raise typer.Exit(EXIT_FAILED)


register = commands(demo)
