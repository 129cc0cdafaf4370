"""The command line. One module per group of commands, each with `register(app)`.

Upstream: every package. Downstream: people and scripts; `--json` everywhere, exit codes as in
`kernel.errors`. Entry point: `main`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from apps.cli.groups import LazyGroup
from apps.cli.output import let_go_of_output, report, write_what_can_be_written
from apps.cli.usage import WrongUsage, told
from kernel.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
    InvalidRequest,
    Misconfigured,
    PenstockError,
    StorageFull,
    exit_code,
    is_no_room,
)
from lake.child_processes import step_back

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

_BEHIND_OTHERS = {("replay", "apply"), ("replay", "resume")}
"""Commands that take all processors for a while: the pipeline, and who waits for it, go first."""


class CommandLine(LazyGroup):
    """The commands of `COMMANDS`."""

    modules: ClassVar = {name: module for module, lines in COMMANDS.items() for name in lines}
    lines: ClassVar = {name: line for lines in COMMANDS.values() for name, line in lines.items()}


def build() -> typer.Typer:
    """Assemble the command line."""
    app = typer.Typer(
        name="penstock",
        cls=CommandLine,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Plain help: it fits the terminal, has no frames in pipes, and needs no second to load.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def penstock(
        version: Annotated[
            bool, typer.Option("--version", help="Print the version.", callback=_version)
        ] = False,
    ) -> None:
        """Facts in, trustworthy Delta tables out, replayable from any point."""

    return app


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"penstock {version('penstock')}")
        raise typer.Exit


def _utf8() -> str:
    """Return what helps: Python reads the words of a call in the locale's encoding."""
    encoding = sys.getfilesystemencoding()
    if encoding.lower().replace("-", "") == "utf8":
        return "Write names and texts in UTF-8."
    return f"Python reads the call as {encoding} here: set PYTHONUTF8=1, or LC_ALL=C.UTF-8."


def main() -> None:
    """Run a command; what is wrong with a call or a file becomes one message and an exit code."""
    write_what_can_be_written()
    if tuple(sys.argv[1:3]) in _BEHIND_OTHERS:
        step_back()
    try:
        code = build()(prog_name="penstock", standalone_mode=False)
        # A short answer reaches its file or pipe here, while it can be told that it does not.
        sys.stdout.flush()
    except PenstockError as error:
        raise SystemExit(_refused(error)) from error
    except WrongUsage as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            raise SystemExit(EXIT_USAGE) from error
        raise SystemExit(_refused(told(error))) from error
    except UnicodeEncodeError as error:
        # A word of the call that is no text; such a file's name never comes here.
        word = error.object[:100].encode(errors="surrogateescape").decode(errors="backslashreplace")
        refused = InvalidRequest(f"'{word}' is not UTF-8", remedy=_utf8())
        raise SystemExit(_refused(refused)) from error
    except RuntimeError as error:
        # DuckDB makes an error of its own of Ctrl-C.
        if "Query interrupted" not in str(error):
            raise
        raise SystemExit(_INTERRUPTED) from error
    except BrokenPipeError as error:
        # Whoever read the answer has enough of it.
        let_go_of_output()
        raise SystemExit(EXIT_FAILED) from error
    except OSError as error:
        if error.filename is None:
            let_go_of_output()
        raise SystemExit(_refused(_of_system(error))) from error
    raise SystemExit(code or 0)


def _refused(error: PenstockError) -> int:
    report(error, as_json="--json" in sys.argv)
    return exit_code(error)


def _of_system(error: OSError) -> PenstockError:
    """Return what the system refused as an error of ours."""
    where = "" if error.filename is None else f"{error.filename} "
    if is_no_room(error):
        return StorageFull(
            f"{where or 'the answer '}cannot be written: {error.strerror}",
            remedy="Make room on that disk, or write to another one; then give the command again.",
        )
    if error.filename is None:
        return Misconfigured(
            f"the system refused to read or write: {error.strerror or error}",
            remedy="Mend what it names, then give the command again. See: penstock doctor",
        )
    return InvalidRequest(
        f"{where}cannot be opened: {error.strerror}",
        remedy="Name a file that you may read, or a folder that you may write.",
    )
