"""Every command is documented, takes `--json` and a workspace, and says what it does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperOption

from tests.architecture.tree import name_of, parsed, sources
from tests.docs.cli_reference import PAGE, leaves, page
from tests.docs.markdown import pages
from tests.support.services.workers import CODE

pytestmark = pytest.mark.xdist_group(CODE)
COMMANDS = [pytest.param(name, command, id=name) for name, command in sorted(leaves())]


def test_the_page_is_the_one_that_the_code_makes() -> None:
    assert PAGE.read_text() == page(), "renew it: python -m tests.docs.cli_reference"


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_every_command_explains_itself(name: str, command: TyperCommand) -> None:
    assert len((command.help or "").split()) >= 3
    for option in command.params:
        if isinstance(option, TyperOption):
            assert option.help, f"{name} {option.name}"


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_every_command_speaks_json_and_takes_a_workspace(name: str, command: TyperCommand) -> None:
    options = {each for option in command.params for each in option.opts}
    assert {"--json", "--workspace", "-w"} <= options


NAMED = re.compile(r"penstock((?: [a-z][a-z-]+){1,2})")


def test_commands_that_pages_name_exist() -> None:
    named = {
        f"{name_of(each)}: {found}"
        for each in pages()
        for code in re.findall(r"`([^`]+)`|\$ (.+)", each.read_text())
        for found in NAMED.findall("".join(code))
        if not exists(found)
    }
    assert not named


def test_commands_that_remedies_name_exist() -> None:
    """The next command of an error message is one that there is."""
    named = {
        f"{name_of(path)}: {found}"
        for path in sources()
        for text in remedies(path)
        for found in NAMED.findall(text)
        if not exists(found)
    }
    assert not named


def remedies(path: Path) -> Iterator[str]:
    """Yield the texts given as `remedy`, as a keyword or as a class attribute."""
    for node in ast.walk(parsed(path)):
        match node:
            case ast.keyword(arg="remedy", value=value):
                yield ast.unparse(value)
            case ast.Assign(targets=[ast.Name(id="remedy")], value=value):
                yield ast.unparse(value)
            case ast.AnnAssign(target=ast.Name(id="remedy"), value=ast.expr() as value):
                yield ast.unparse(value)
            case _:
                continue


@cache
def all_commands() -> list[list[str]]:
    return [name.split()[1:] for name, _ in leaves()]


def exists(words: str) -> bool:
    """Say whether one or two words after `penstock` begin a command or name a group."""
    first, *rest = words.split()
    commands = all_commands()
    if [first] in commands:
        return True
    seconds = {name[1] for name in commands if name[0] == first and len(name) > 1}
    return bool(seconds) and (not rest or rest[0] in seconds)
