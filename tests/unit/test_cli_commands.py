from __future__ import annotations

import importlib

import pytest
import typer

from apps.cli import COMMANDS, build


@pytest.mark.parametrize("module", COMMANDS)
def test_each_module_registers_the_commands_that_it_is_imported_for(module: str) -> None:
    app = typer.Typer()
    importlib.import_module(module).register(app)
    commands = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    groups = [group.name for group in app.registered_groups]
    assert sorted([*commands, *map(str, groups)]) == sorted(COMMANDS[module])


def test_an_unknown_command_gets_the_whole_command_line() -> None:
    assert len(build("nonsense").registered_commands) > len(build("up").registered_commands)
