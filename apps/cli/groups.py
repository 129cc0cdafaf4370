"""Groups of commands: their help lines, and the root, which imports a command when it is called."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from apps.cli.output import remember_call
from apps.cli.usage import WrongUsage, unknown_command
from apps.cli.values import read_plainly


class Group(TyperGroup):
    """A group whose help shows the first sentence of each command whole, not cut at the margin.

    Called without a command it shows its help.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "no_args_is_help": True})

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that arguments begin with. Raises `InvalidRequest` with near names."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise unknown_command(ctx.command_path, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)

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

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of a call, and keep them for whom wants to tell how it was called."""
        remember_call(args)
        words: list[str] = super().parse_args(ctx, args)
        return words

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

    def help_lines(self, ctx: Any) -> Iterator[tuple[str, str]]:
        """Yield names and lines without importing anything."""
        yield from self.lines.items()


def prepare(command: Any) -> None:
    """Let the parameters of a command, and of all commands of a group, read plain values.

    What its parser finds wrong knows of which command it is then.
    """
    made, parse = command.get_params, command.parse_args

    def plain(ctx: Any) -> Any:
        params = made(ctx)
        for param in params:
            read_plainly(param)
        return params

    def parsed(ctx: Any, args: list[str]) -> Any:
        try:
            return parse(ctx, args)
        except WrongUsage as error:
            vars(error)["ctx"] = getattr(error, "ctx", None) or ctx
            raise

    command.__dict__["parse_args"] = parsed
    # Asked at each call: Typer adds --help, and the root's completion, when a command is made.
    command.__dict__["get_params"] = plain
    for each in getattr(command, "commands", {}).values():
        prepare(each)


def first_line(help_text: str) -> str:
    """Return what a command does, in the first line of its documentation."""
    return inspect.cleandoc(help_text).partition("\n")[0]
