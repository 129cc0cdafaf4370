"""Wrong usage, told as every other error is: what is wrong with which word, and what to write.

Typer's own words name no next command. What it found is turned into an error of ours here alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

import typer
from typer.core import TyperArgument, TyperOption

from kernel.errors import InvalidRequest

WrongUsage: type[Exception] = typer.BadParameter.__mro__[1]
"""The kind of everything that Typer finds wrong with a call; it has no public name."""
_EXTRA = re.compile(r"extra arguments?(?:\(s\))? \((?P<words>.*)\)")
_FEW = 12
"""Commands of a group that are named one by one."""


def told(error: Any) -> InvalidRequest:
    """Return what Typer found wrong with a call as an error with a command that mends it."""
    context = error.ctx
    if context is None:
        return InvalidRequest(error.format_message(), remedy="penstock --help")
    path, help_ = context.command_path, f"See: {context.command_path} --help"
    match type(error).__name__:
        case "NoSuchOption":
            return _no_option(context, str(error.option_name))
        case "MissingParameter":
            name = _name(error.param)
            meaning = f": {error.param.help}" if error.param.help else ""
            return InvalidRequest(f"{name} is missing{meaning}", remedy=usage_of(context))
        case "BadOptionUsage":
            name = str(error.option_name)
            return InvalidRequest(
                f"{name} wants a value behind it", remedy=f"{path} {_option(context, name)}"
            )
        case "BadParameter" if error.param is not None:
            default = error.param.default
            shown = isinstance(default, int | float | str) and not isinstance(default, bool)
            name = _name(error.param)
            said = f"{name}: {error.message}"
            if shown and default != "" and isinstance(error.param, TyperOption):
                return InvalidRequest(said, remedy=f"{path} {name} {default}. {help_}")
            return InvalidRequest(said, remedy=f"{usage_of(context)}. {help_}")
    found = _EXTRA.search(error.message)
    if found is not None:
        return InvalidRequest(
            f"nothing takes '{found['words']}'",
            remedy=f"{usage_of(context)}. Text with blanks stands in quotes. {help_}",
        )
    return InvalidRequest(error.format_message(), remedy=help_)


def unknown_command(path: str, name: str, known: Iterable[str]) -> InvalidRequest:
    """Return the error for a command that there is not, with those of nearly its name."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=2, cutoff=0.7)
    if near:
        remedy = f"Did you mean: {' or '.join(f'{path} {each}' for each in near)}"
    elif len(names) <= _FEW:
        remedy = f"There are: {', '.join(names)}. See: {path} --help"
    else:
        remedy = f"See all of them: {path} --help"
    return InvalidRequest(f"{path} has no command '{name}'", remedy=remedy)


def usage_of(context: Any) -> str:
    """Return how a command is called: what it must have, and what arguments it may have."""
    params = context.command.params
    arguments = [_argument(each) for each in params if isinstance(each, TyperArgument)]
    options = [
        _option(context, each.opts[0])
        for each in params
        if isinstance(each, TyperOption) and each.required
    ]
    return " ".join([context.command_path, *arguments, *options])


def _no_option(context: Any, name: str) -> InvalidRequest:
    path = context.command_path
    known = [opt for each in context.command.get_params(context) for opt in each.opts]
    options = [each for each in known if each.startswith("-")]
    near = difflib.get_close_matches(name, options, n=1)
    if near:
        remedy = f"Did you mean: {path} {_option(context, near[0])}"
    elif hasattr(context.command, "commands"):
        remedy = f"Options stand behind the command: {path} COMMAND {name}. See: {path} --help"
    else:
        remedy = f"See what it takes: {path} --help"
    return InvalidRequest(f"{path} has no option {name}", remedy=remedy)


def _name(param: Any) -> str:
    if isinstance(param, TyperArgument):
        return _argument(param).strip("[]")
    return str(param.opts[0])


def _argument(param: TyperArgument) -> str:
    name = (param.metavar or (param.name or "").upper().rstrip("_")).strip("[]")
    shown = f"{name}…" if param.nargs == -1 else name
    return shown if param.required else f"[{shown}]"


def _option(context: Any, name: str) -> str:
    """Return an option with the kind of value that it wants."""
    for each in context.command.get_params(context):
        if name in each.opts and isinstance(each, TyperOption) and not each.is_flag:
            return f"{name} {each.metavar or 'VALUE'}"
    return name
