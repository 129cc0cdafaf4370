"""The page on tests of projections holds: its projection, its tests and what they print."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from apps.cli import projection
from kernel.errors import EXIT_FAILED
from tests.architecture.tree import ROOT
from tests.docs.markdown import blocks

PAGE = ROOT / "docs/reference/projection-tests.md"


def test_the_page_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_language = {block.language: block.text for block in blocks(PAGE)}
    (tmp_path / "paid.sql").write_text(by_language["sql"])
    (tmp_path / "paid.test").write_text(by_language["text"])
    command, *shown = by_language["console"].strip().split("\n")
    app = typer.Typer()
    projection.register(app)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, command.removeprefix("$ penstock ").split())
    assert result.exit_code == EXIT_FAILED
    *lines, last = result.stdout.strip().split("\n")
    assert [*lines, last.partition(" (")[0]] == shown
    assert "(" in last, "the seconds"


def test_every_example_is_listed() -> None:
    page = (ROOT / "examples/projections/README.md").read_text()
    names = {path.stem for path in (ROOT / "examples/projections").glob("*.test")}
    assert {line.split("`")[1] for line in page.split("\n") if line.startswith("| `")} == names
