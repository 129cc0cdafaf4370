"""What README and tutorial tell a newcomer to type works, in the order of the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps import settings
from tests.architecture.tree import ROOT, name_of
from tests.docs.conftest import Newcomer
from tests.docs.console import Command, commands, run
from tests.docs.markdown import blocks, pages

WRITTEN_URL = "http://127.0.0.1:7070"
"""The service's default address, which pages use; the tests' own stack may listen elsewhere."""

FURTHER = frozenset({ROOT / "docs/tutorial/replay-a-projection.md"})
"""Pages whose commands have each a quicker test. The first tutorial replays on this stack too."""


def executed(page: Path, argument: str) -> list[Command]:
    """Return the commands of a page's blocks that are marked `run`, with this argument."""
    return [
        command
        for block in blocks(page)
        if block.mark == ("run", argument)
        for command in commands(block.text)
    ]


def with_blocks(argument: str) -> list[Path]:
    return [page for page in pages() if executed(page, argument)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name_of(page), marks=[pytest.mark.matrix] * (page in FURTHER))
        for page in with_blocks("stack")
    ],
)
def test_commands_of_a_page_work_on_a_running_stack(
    page: Path, newcomer: Newcomer, tmp_path: Path
) -> None:
    url = settings.load(newcomer.workspace).required("service.url")
    for command in executed(page, "stack"):
        typed = Command(text=command.text.replace(WRITTEN_URL, url), expected=command.expected)
        run(typed, folder=tmp_path, environment=newcomer.environment)


def test_pages_for_newcomers_have_commands_that_run() -> None:
    newcomers = {ROOT / "README.md", ROOT / "docs/tutorial/first-stream.md"}
    assert newcomers | FURTHER <= set(with_blocks("stack"))
