"""The repository speaks of the product alone, and says under which licence."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

from apps import settings
from tests.architecture.tree import ROOT, is_ignored, name_of, texts

WORKPLACE = {
    "a machine's path": re.compile(r"(?<![\w.])/(work|root|home/\w+|Users/\w+)/\w|/tmp/pen\b"),
    "who typed it": re.compile(
        r"(?i)\b(claude|anthropic|openai|chatgpt|gpt-\d|copilot|llms?|sub-?agents?|"
        r"(ai|coding) (agent|assistant)s?|helper session|co-authored-by)\b"
    ),
    "an issue's number": re.compile(r"(?i)\bissues? #?\d+|(?<![\w&/#])(?<!PKCS )#\d{1,5}\b(?!;)"),
    "a package index": re.compile(
        r"(?i)pypi\.org|pythonhosted\.org|repo\d*\.maven|maven\.org/|artifactory|"
        r"(?<!emit-)(extra-)?index-url|/simple/"
    ),
}
COLOUR_FILES = {".css", ".html", ".svg", ".js", ".ts"}


def findings(path: Path, text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for kind, pattern in WORKPLACE.items():
            if kind == "an issue's number" and path.suffix in COLOUR_FILES:
                continue
            if hit := pattern.search(line):
                found.append(f"{name_of(path)}:{number} names {kind}: {hit.group()!r}")
    return found


def test_no_word_of_the_workplace() -> None:
    found = [
        finding
        for path, text in texts()
        if path != Path(__file__)
        for finding in findings(path, text)
    ]
    assert not found, "\n".join(found[:40])


def test_the_search_finds_what_it_looks_for() -> None:
    planted = Path(ROOT / "docs/planted.md")
    for text in ("see /work/main/x", "by an AI agent", "fixes issue 12", "from pypi.org/simple/"):
        assert findings(planted, text), text
    for text in ("/v1/streams/a", "a Spark session", "# 1. Foundations", "SESSION(t, gap)"):
        assert not findings(planted, text), text


def test_licence_is_there_and_declared() -> None:
    licence = (ROOT / "LICENSE").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence
    assert project["license"] == "Apache-2.0"
    assert "LICENSE" in project["license-files"]


def test_changelog_has_a_place_for_what_comes_and_names_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert "## [Unreleased]" in changelog
    assert f"## [{version}]" in changelog


def test_a_stack_in_a_checkout_leaves_nothing_untracked() -> None:
    """`make up` makes the workspace of the checkout's root: its state, and its lake within."""
    here = settings.load(ROOT)
    assert Path(here.lake).parent == here.state_dir
    written = [here.state_dir, ROOT / ".venv", ROOT / "penstock.egg-info"]
    assert {path.parent for path in written} == {ROOT}
    assert [path.name for path in written if not is_ignored(path)] == []
    # What is named after the lake is code here, no tables.
    for kept in (ROOT / "lake", ROOT / "eventstore/lake_archive.py", ROOT / "tests/support/lake"):
        assert kept.exists()
        assert not is_ignored(kept)


def test_every_make_target_says_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    described = set(re.findall(r"^([a-z]+):.*## \S", makefile, flags=re.MULTILINE))
    assert {"help", "demo", "test", "lint", "fmt", "bench", "up", "down", "clean"} <= described
    assert not set(phony.split()) - described


def test_programs_that_make_starts_keep_their_bytecode() -> None:
    """Without it each process compiles all that it imports: that is most of what a start takes."""
    shown = subprocess.run(
        ["make", "--silent", "--eval", "shown: ; @echo [$$PYTHONDONTWRITEBYTECODE]", "shown"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == "[]\n"


def test_ci_runs_the_targets_that_people_run() -> None:
    script = (ROOT / ".ci/run").read_text()
    steps = re.findall(r"^step make (.+)$", script, flags=re.MULTILINE)
    assert steps == ["lint", "test", "demo FLIGHTS=3000"]
