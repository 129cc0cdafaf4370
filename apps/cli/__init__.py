"""The command line. One module per group of commands, each with `register(app)`.

Upstream: every package. Downstream: people and scripts; `--json` everywhere, exit codes as in
`kernel.errors`. Entry point: `main`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

COMMANDS: Mapping[str, Mapping[str, str]] = {
    "apps.cli.workspace": {
        "init": "Make a workspace to begin with: settings, schemas, rules and a projection.",
        "config": "The settings of a workspace.",
    },
    "apps.cli.stack": {
        "up": "Start the local stack, or attach to the one that runs; returns when all is ready.",
        "down": "Stop the local stack, in order.",
        "status": "Show each part: state, process, port, version, restarts; and what stands still",
        "logs": "Show the last lines of the parts' logs.",
        "doctor": "Check this machine: what is required, what was found, how to mend it.",
        "reset": "Stop the stack and remove its databases, topics, schemas and logs.",
    },
    "apps.cli.restart": {"restart": "Stop one part of the local stack and start it again."},
    "apps.cli.token": {"token": "Print the workspace's token"},
    "apps.cli.events": {
        "append": "Append an event, or a file of events, to one stream.",
        "read": "Print the events of a stream, or of the whole store.",
        "tail": "Follow events as they happen; with --json one JSON document per line.",
    },
    "apps.cli.store": {"store": "The event store itself."},
    "apps.cli.stream": {"stream": "What streams there are and show, their end, export and import."},
    "apps.cli.command": {
        "command": "Send a command to an entity; print the events that it led to.",
        "entity": "Show the state of an entity: now, after a version, or at a time.",
    },
    "apps.cli.subscription": {
        "subscription": "Persistent subscriptions: several consumers, one memory."
    },
    "apps.cli.schema": {"schema": "Schemas of event types."},
    "apps.cli.source": {"source": "Databases whose tables are captured."},
    "apps.cli.projection": {"projection": "Projections: SQL kept up to date as tables."},
    "apps.cli.replay": {
        "replay": "Build projections again from the lake, compare, swap; send events elsewhere."
    },
    "apps.cli.savepoint": {"savepoint": "Named states of all tables, kept until dropped."},
    "apps.cli.query": {
        "query": "Ask the tables, all at one epoch: by default the greatest that all of them have.",
        "table": "The lake's tables.",
        "epoch": "Committed batches: offsets in, table versions out.",
    },
    "apps.cli.trace": {
        "trace": "Show the way of one event: store, Kafka, log, epoch, typed table, projections; "
        "and when."
    },
    "apps.cli.quarantine": {
        "quarantine": "Records that could not be used, with their bytes.",
    },
    "apps.cli.wait": {
        "wait": "Wait until all that was committed by now is in all tables and sinks."
    },
    "apps.cli.demo": {"demo": "Run the whole system on real flights and check every figure."},
}
"""Modules and the commands that each registers, with the help line of each, in the order of help.

A call imports only the module of its command. A command's own documentation begins with its line.
"""

_INTERRUPTED = 130
"""As shells say it, and Typer: 128 and the number of the signal."""


def build() -> typer.Typer:
    """Assemble the command line."""
    from apps.cli.command_line import assembled

    return assembled()


def main() -> None:
    """Run a command. Ctrl-C ends it at any moment without a traceback, while it loads as well."""
    try:
        from apps.cli.command_line import run

        run()
    except SystemExit:
        raise
    except BaseException as error:
        if not was_interrupted(error):
            raise
        raise SystemExit(_INTERRUPTED) from None


def was_interrupted(error: BaseException | None) -> bool:
    """Say whether Ctrl-C is behind an error: code in C that loads makes another one of it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None
