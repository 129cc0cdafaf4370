"""Groups of commands: their help lines, and the root, which imports a command when it is called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from apps.cli.values import read_plainly


class Group(TyperGroup):
    """A group whose help shows the first sentence of each command whole, not cut at the margin."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a line for each command."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.help_lines(ctx)))

    def help_lines(self, ctx: Any) -> Iterator[tuple[str, str]]:
        """Yield each command's name and what it does."""
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                yield name, first_line(command.help or "")


class LazyGroup(Group):
    """The root: it knows its commands' names and help lines, and imports the module of one called.

    `modules` names a module for each command, `lines` what it does; a module's `register(app)` adds
    its commands to a Typer.
    """

    modules: ClassVar[Mapping[str, str]] = {}
    lines: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        prepare(self)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all names, in the order of the table."""
        return list(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; None for a name that there is not."""
        if cmd_name in self.modules and cmd_name not in self.commands:
            app = typer.Typer(cls=Group, rich_markup_mode=None)
            importlib.import_module(self.modules[cmd_name]).register(app)
            found = typer.main.get_group(app)
            prepare(found)
            self.commands.update(found.commands)
        return self.commands.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that arguments begin with; an unknown one is answered by near names."""
        if args and args[0] not in self.modules:
            # Typer looks for near names among the commands that were loaded.
            for name in self.modules:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def help_lines(self, ctx: Any) -> Iterator[tuple[str, str]]:
        """Yield names and lines without importing anything."""
        yield from self.lines.items()


def prepare(command: Any) -> None:
    """Let the parameters of a command, and of all commands of a group, read plain values."""
    made = command.get_params

    def plain(ctx: Any) -> Any:
        params = made(ctx)
        for param in params:
            read_plainly(param)
        return params

    # Asked at each call: Typer adds --help, and the root's completion, when a command is made.
    command.__dict__["get_params"] = plain
    for each in getattr(command, "commands", {}).values():
        prepare(each)


def first_line(help_text: str) -> str:
    """Return what a command does, in the first line of its documentation."""
    return inspect.cleandoc(help_text).partition("\n")[0]
