"""The command line. One module per group of commands, each with `register(app)`.

Upstream: every package. Downstream: people and scripts; `--json` everywhere, exit codes as in
`kernel.errors`. Entry point: `main`.
"""

from __future__ import annotations

import importlib
import sys

import typer

from apps.cli.output import report
from kernel.errors import PenstockError, exit_code

GROUPS: tuple[str, ...] = (
    "apps.cli.stack",
    "apps.cli.events",
    "apps.cli.schema",
    "apps.cli.source",
    "apps.cli.projection",
    "apps.cli.replay",
    "apps.cli.query",
    "apps.cli.wait",
    "apps.cli.demo",
)
"""Modules with commands, in the order in which help shows them."""


def build() -> typer.Typer:
    """Assemble the whole command line."""
    app = typer.Typer(
        name="penstock",
        help="Facts in, trustworthy Delta tables out, replayable from any point.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in GROUPS:
        importlib.import_module(name).register(app)
    return app


def main() -> None:
    """Run a command; an error of ours becomes one clear message and an exit code."""
    try:
        build()()
    except PenstockError as error:
        report(error, as_json="--json" in sys.argv)
        raise SystemExit(exit_code(error)) from error
