"""Writes `docs/reference/cli.md` from the code: `python -m tests.docs.cli_reference`.

Every command with its arguments, options, defaults and what it does. The test beside it compares.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from apps.cli import build
from tests.architecture.tree import ROOT

PAGE = ROOT / "docs/reference/cli.md"
HEAD = """# Command line

*Reference.* Made from the code by `python -m tests.docs.cli_reference`; do not edit by hand.

Every command takes `--json` for one document instead of text, and `--workspace` for another folder
than the present one. It ends with 0 when all went well, 1 when it failed, 2 for wrong usage,
3 when it wants a confirmation, 4 for a conflict, 5 when a part is down or not ready, and 6 when
only a part was done. 130 says that Ctrl-C ended it.
"""


def page() -> str:
    """Return the text of the page as the code has it."""
    return HEAD + "".join(map(_section, sorted(leaves(), key=lambda each: each[0])))


def leaves() -> Iterator[tuple[str, TyperCommand]]:
    """Yield every command with its full name, groups opened."""
    todo: list[tuple[str, object]] = [("penstock", typer.main.get_command(build()))]
    while todo:
        name, command = todo.pop()
        if isinstance(command, TyperGroup):
            context = typer.Context(command)
            names = command.list_commands(context)
            todo += [(f"{name} {each}", command.get_command(context, each)) for each in names]
        elif isinstance(command, TyperCommand) and not command.hidden:
            yield name, command


def _section(named: tuple[str, TyperCommand]) -> str:
    name, command = named
    arguments = [each for each in command.params if isinstance(each, TyperArgument)]
    usage = " ".join([name, *map(_argument, arguments)])
    text = inspect.cleandoc(command.help or "").replace("\b\n", "")
    rows = [_row(each) for each in command.params if isinstance(each, TyperOption)]
    table = "\n| option | default | meaning |\n|---|---|---|\n" + "".join(rows) if rows else ""
    return f"\n## `{usage}`\n\n{text}\n{table}"


def _argument(argument: TyperArgument) -> str:
    name = (argument.metavar or argument.name or "").upper().strip("[]")
    shown = f"{name}…" if argument.nargs == -1 else name
    return shown if argument.required else f"[{shown}]"


def _row(option: TyperOption) -> str:
    names = ", ".join(f"`{each}`" for each in [*option.opts, *option.secondary_opts])
    unset = option.default is None or option.is_flag or callable(option.default)
    default = "" if unset or option.default in ((), []) else f"`{option.default}`"
    default = "required" if option.required else default
    return f"| {names} | {default} | {(option.help or '').replace('|', chr(92) + '|')} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
