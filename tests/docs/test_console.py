"""The runner of console blocks sees what a reader would see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.docs.console import Command, commands, matches, run


def test_commands_continue_and_show_their_output() -> None:
    block = "$ echo one \\\n> two\none two\n$ true\n$ echo three\nthree"
    assert list(commands(block)) == [
        Command(text="echo one \\\ntwo", expected="one two"),
        Command(text="true", expected=None),
        Command(text="echo three", expected="three"),
    ]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb", "a  \nb\n", True),
        ("a …", "a 12 ms\n", True),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a", "a\nb", False),
        ("rows: 3", "rows: 4", False),
        ("a.c", "abc", False),
    ],
)
def test_dots_stand_for_any_text(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def test_a_command_that_fails_or_prints_something_else_is_noticed(tmp_path: Path) -> None:
    run(Command(text="echo a", expected="a"), folder=tmp_path, environment=os.environ)
    for command in (
        Command(text="false | cat", expected=None),
        Command(text="echo a", expected="b"),
    ):
        with pytest.raises(AssertionError):
            run(command, folder=tmp_path, environment=os.environ)
