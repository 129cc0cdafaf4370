"""The command line. One module per group of commands, each with `register(app)`.

Upstream: every package. Downstream: people and scripts; `--json` everywhere, exit codes as in
`kernel.errors`. Entry point: `main`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping

import typer

from apps.cli.output import report
from kernel.errors import PenstockError, exit_code

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "apps.cli.stack": ("up", "down", "status", "logs", "doctor", "reset"),
    "apps.cli.restart": ("restart",),
    "apps.cli.events": ("append", "read", "tail"),
    "apps.cli.stream": ("stream",),
    "apps.cli.command": ("command", "entity"),
    "apps.cli.subscription": ("subscription",),
    "apps.cli.schema": ("schema",),
    "apps.cli.source": ("source",),
    "apps.cli.projection": ("projection",),
    "apps.cli.replay": ("replay",),
    "apps.cli.query": ("query", "table", "epoch", "quarantine"),
    "apps.cli.wait": ("wait",),
    "apps.cli.demo": ("demo",),
}
"""Modules and the commands that each registers, in the order in which help shows them.

A call imports only the module of its command: importing all of them takes seconds.
"""


def build(only: str | None = None) -> typer.Typer:
    """Assemble the command line: all of it, or just what command `only` needs."""
    app = typer.Typer(
        name="penstock",
        help="Facts in, trustworthy Delta tables out, replayable from any point.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Plain help: it fits the terminal, has no frames in pipes, and needs no second to load.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def penstock() -> None:
        """Facts in, trustworthy Delta tables out, replayable from any point."""

    known = any(only in commands for commands in COMMANDS.values())
    for name, commands in COMMANDS.items():
        if not known or only in commands:
            importlib.import_module(name).register(app)
    return app


def main() -> None:
    """Run a command; an error of ours becomes one clear message and an exit code."""
    try:
        build(next(iter(sys.argv[1:]), None))()
    except PenstockError as error:
        report(error, as_json="--json" in sys.argv)
        raise SystemExit(exit_code(error)) from error
