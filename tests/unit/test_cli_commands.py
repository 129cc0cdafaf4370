from __future__ import annotations

import importlib

import pytest
import typer

from apps.cli import COMMANDS, build
from apps.cli.groups import first_line


@pytest.mark.parametrize("module", COMMANDS)
def test_each_module_registers_the_commands_that_it_is_imported_for(module: str) -> None:
    app = typer.Typer()
    importlib.import_module(module).register(app)
    commands = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    groups = [group.name for group in app.registered_groups]
    assert sorted([*commands, *map(str, groups)]) == sorted(COMMANDS[module])


@pytest.mark.parametrize(
    ("name", "line"), [each for lines in COMMANDS.values() for each in lines.items()]
)
def test_a_command_begins_its_help_with_its_line(name: str, line: str) -> None:
    root = typer.main.get_group(build())
    command = root.get_command(typer.Context(root), name)
    assert command is not None
    assert first_line(command.help or "").startswith(line)
