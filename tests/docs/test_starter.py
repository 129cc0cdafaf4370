"""The workspace of `penstock init`: its README is followed on a running stack."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from apps import settings
from apps.cli.starter import begin
from kernel.errors import Conflict, InvalidRequest
from projections.sql.statements.parse import parse_script
from tests.docs.conftest import Newcomer
from tests.docs.console import commands, run
from tests.docs.markdown import blocks


@pytest.mark.timeout(600)
def test_its_readme_works_as_it_is_written(newcomer: Newcomer, tmp_path: Path) -> None:
    folder = tmp_path / "help desk"
    begin(folder)
    rules = newcomer.workspace / "deciders" / "tickets.py"
    rules.parent.mkdir(exist_ok=True)
    shutil.copy(folder / "deciders" / "tickets.py", rules)
    try:
        told = [
            command
            for block in blocks(folder / "README.md")
            if block.mark == ("run", "starter")
            for command in commands(block.text)
        ]
        for command in told:
            run(command, folder=folder, environment=newcomer.environment)
        assert len(told) == 9
    finally:
        # Others use the stack: a projection that waits for its first event is no health of theirs.
        drop = ["penstock", "projection", "drop", "tickets", "--yes"]
        done = subprocess.run(
            drop, env=dict(newcomer.environment), check=False, capture_output=True
        )
        rules.unlink()
    assert done.returncode == 0, done.stderr


def test_it_is_named_after_its_folder_and_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "Help Desk 2"
    written = begin(folder)
    assert written == sorted(path for path in folder.rglob("*") if path.is_file())
    assert settings.load(folder).name == "help_desk_2"
    for each in folder.rglob("*.sql"):
        assert parse_script(each.read_text()).projections


def test_a_file_is_no_folder_to_begin_in(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="is no folder") as refused:
        begin(tmp_path / "file")
    assert "penstock init DIR" in refused.value.remedy


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(Conflict, match=r"has README\.md already"):
        begin(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    with pytest.raises(InvalidRequest, match="no workspace can be named"):
        begin(tmp_path / "水")
