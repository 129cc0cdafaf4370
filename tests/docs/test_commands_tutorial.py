"""The tutorial on commands, followed from top to bottom over a service of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.architecture.tree import ROOT
from tests.docs.console import commands, run
from tests.docs.markdown import blocks
from tests.support.services.http import service_in_thread

PAGE = ROOT / "docs/tutorial/commands.md"


def follow(argument: str, workspace: Path, **environment: str) -> int:
    """Run the commands of the blocks that are marked so; return how many."""
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    given = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), **environment}
    wanted = [
        command
        for block in blocks(PAGE)
        if block.mark == ("run", argument)
        for command in commands(block.text)
    ]
    for command in wanted:
        run(command, folder=workspace, environment=given)
    return len(wanted)


def test_the_page_works_as_it_is_written(postgres_dsn: str, tmp_path: Path) -> None:
    assert follow("workspace", tmp_path) == 4
    with service_in_thread(postgres_dsn, workspace=tmp_path) as http:
        assert follow("service", tmp_path, PENSTOCK_SERVICE_URL=str(http.base_url)) == 7
