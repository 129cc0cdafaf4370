"""What a call goes through: the root of the commands, and what becomes of an error."""

from __future__ import annotations

import sys
from typing import Annotated, ClassVar

import typer

from apps.cli import COMMANDS
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

_BEHIND_OTHERS = {("replay", "apply"), ("replay", "resume")}
"""Commands that take all processors for a while: the pipeline, and who waits for it, go first."""


class CommandLine(LazyGroup):
    """The commands of `COMMANDS`."""

    modules: ClassVar = {name: module for module, lines in COMMANDS.items() for name in lines}
    lines: ClassVar = {name: line for lines in COMMANDS.values() for name, line in lines.items()}


def assembled() -> typer.Typer:
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


def run() -> None:
    """Run a command; what is wrong with a call or a file becomes one message and an exit code.

    Raises `KeyboardInterrupt` for Ctrl-C, where Typer does not make an exit code of it.
    """
    write_what_can_be_written()
    if tuple(sys.argv[1:3]) in _BEHIND_OTHERS:
        step_back()
    try:
        code = assembled()(prog_name="penstock", standalone_mode=False)
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
        raise KeyboardInterrupt from error
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
