"""`projection validate` and `projection explain` on files, without any service."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from apps.cli import projection
from kernel.errors import EXIT_USAGE, InvalidRequest, Misconfigured, NotFound

SOURCES = "CREATE SOURCE weather ON demo.public.weather WITH (key = origin, event_time = hour);"
GOOD = (
    "CREATE PROJECTION seen WITH (key = flight) AS SELECT e.flight, w.wind "
    "FROM STREAM events.flight e LEFT JOIN weather FOR SYSTEM_TIME AS OF e.occurred_at w "
    "ON w.origin = e.origin;"
)
WRONG = (
    "CREATE PROJECTION wrong WITH (key = flight) AS\n"
    "SELECT fligth AS flight FROM STREAM events.flight"
)
CATALOG = {
    "streams": {
        "events.flight": {
            "columns": {"flight": "STRING", "origin": "STRING", "occurred_at": "TIMESTAMP"}
        }
    },
    "latests": {
        "demo.public.weather": {
            "columns": {"origin": "STRING", "hour": "TIMESTAMP", "wind": "INT"},
            "key": ["origin", "hour"],
        }
    },
}


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / ".penstock").mkdir()
    (tmp_path / ".penstock/catalog.json").write_text(json.dumps(CATALOG))
    (tmp_path / "sources.sql").write_text(SOURCES)
    (tmp_path / "good.sql").write_text(GOOD)
    (tmp_path / "wrong.sql").write_text(WRONG)
    return tmp_path


def run(workspace: Path, *arguments: str) -> Result:
    app = typer.Typer()
    projection.register(app)
    command, *files = arguments
    paths = [str(workspace / each) if each.endswith(".sql") else each for each in files]
    options = ["--workspace", str(workspace), *paths]
    return CliRunner().invoke(app, ["projection", command, *options])


def test_good_files_are_valid(workspace: Path) -> None:
    result = run(workspace, "validate", "good.sql", "sources.sql", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 0
    assert answer["sources"] == ["weather"]
    assert answer["names_checked"] is True
    assert [(each["name"], each["ok"]) for each in answer["projections"]] == [("seen", True)]


def test_projections_of_several_files_read_each_other(workspace: Path) -> None:
    outer = (
        "CREATE PROJECTION calm WITH (key = wind) AS "
        "SELECT wind, COUNT(*) AS flights FROM {other} GROUP BY wind;"
    )
    (workspace / "outer.sql").write_text(outer.format(other="seen"))
    result = run(workspace, "explain", "outer.sql", "good.sql", "sources.sql", "--name", "calm")
    assert result.exit_code == 0, result.output
    assert "in_0  projection seen" in result.stdout
    (workspace / "circle.sql").write_text(outer.format(other="calm"))
    refused = run(workspace, "validate", "circle.sql")
    assert refused.exit_code == EXIT_USAGE
    assert "calm -> calm" in refused.stdout


def test_every_wrong_statement_is_named_with_its_place(workspace: Path) -> None:
    (workspace / "broken.sql").write_text("CREATE PROJECTION x AS SELECT 1")
    files = ("sources.sql", "good.sql", "wrong.sql", "broken.sql", "absent.sql")
    result = run(workspace, "validate", *files)
    assert result.exit_code == EXIT_USAGE
    # Where lines are folded depends on how long the workspace's path is.
    said = " ".join(result.stdout.split())
    assert "seen: ok" in said
    assert "wrong.sql:2:8: no input has a column fligth; did you mean flight?" in said
    assert "broken.sql:1:1: projection x names no key" in said
    assert "absent.sql cannot be read" in said
    assert said.count(" fix: ") == 3


def test_without_a_catalog_grammar_alone_is_checked_and_said(workspace: Path) -> None:
    (workspace / ".penstock/catalog.json").unlink()
    result = run(workspace, "validate", "wrong.sql")
    assert result.exit_code == 0
    assert "names and types were not checked" in result.stdout


def test_one_name_in_two_files_is_refused(workspace: Path) -> None:
    (workspace / "again.sql").write_text(GOOD)
    result = run(workspace, "validate", "sources.sql", "good.sql", "again.sql")
    assert result.exit_code == EXIT_USAGE
    assert "seen is declared in" in " ".join(result.stdout.split())


def test_explain_shows_the_plan(workspace: Path) -> None:
    result = run(workspace, "explain", "sources.sql", "good.sql")
    assert result.exit_code == 0
    for part in (
        "projection seen",
        "newest (stateless)",
        "in_1  history  weather",
        "SQL: all rows",
    ):
        assert part in result.stdout
    answer = json.loads(run(workspace, "explain", "sources.sql", "good.sql", "--json").stdout)
    assert [each["name"] for each in answer] == ["seen"]


def test_explain_of_what_cannot_be_explained(workspace: Path) -> None:
    assert isinstance(run(workspace, "explain", "wrong.sql").exception, InvalidRequest)
    unknown = run(workspace, "explain", "good.sql", "sources.sql", "--name", "other")
    assert isinstance(unknown.exception, NotFound)
    (workspace / ".penstock/catalog.json").write_text("{")
    assert isinstance(run(workspace, "explain", "good.sql").exception, Misconfigured)
    (workspace / ".penstock/catalog.json").unlink()
    assert isinstance(run(workspace, "explain", "good.sql").exception, NotFound)
    absent = run(workspace, "validate", "good.sql", "--catalog", "/absent.json")
    assert isinstance(absent.exception, NotFound)
