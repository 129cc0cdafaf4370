"""What people read fits their terminal, and is the same plain text in a pipe."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer

from apps.cli import build, output
from apps.cli.output import cell, emit, fields, folded, report, table
from apps.cli.query import plain
from kernel.errors import NotFound
from tests.docs.cli_reference import leaves

WIDTH = 80
HEADINGS = ("name", "state", "committed at", "path", "reason")
LONG = "it waits for a table that nothing has been written to yet, as the pipeline is stopped"
ID = "b7d1c2f0-5a76-4a42-9c4d-8c0a5c5fd1c9"
PATH = "/srv/penstock/lake/typed/" + "events.order.placed-" * 6
URL = "postgresql://reader@db.example.org:5432/shop?application_name=" + "x" * 60
ROWS = [
    [ID, None, datetime(2026, 1, 2, tzinfo=UTC), "lake", LONG],
    ["orders", True, None, "lake", None],
]
WIDE = [[ID, False, None, PATH, LONG], [URL, ("status", "reason"), 1.5, "-", {"a": None}]]


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))


def too_long(text: str) -> list[str]:
    """Return the lines that do not fit, but for a single word alone on its line."""
    return [line for line in text.splitlines() if len(line) > WIDTH and len(line.split()) > 1]


MADE: dict[str, Callable[[], str]] = {
    "a table that fits": lambda: table(("a", "b"), [[1, 2]]),
    "a table of sentences": lambda: table(HEADINGS, ROWS),
    "a table of long names": lambda: table(HEADINGS, WIDE),
    "a table with notes": lambda: folded(table(HEADINGS, ROWS, notes=[f"  fix: {LONG}", ""])),
    "an empty table": lambda: folded(table(HEADINGS, [], nothing=f"{LONG}; {LONG}")),
    "one thing": lambda: fields(dict(zip(HEADINGS, WIDE[0], strict=True))),
    "many short columns": lambda: table([f"column {n}" for n in range(30)], [[None] * 30]),
    "a sentence": lambda: folded(f"{LONG}: {PATH}\n  fix: {LONG} {URL}"),
}


@pytest.mark.parametrize("what", MADE)
def test_lines_fit_the_terminal(what: str) -> None:
    shown = MADE[what]()
    assert not too_long(shown)
    assert not [each for each in ("None", "('", "True", "False", "\x1b") if each in shown]


@pytest.mark.parametrize("what", [ID, PATH, URL])
@pytest.mark.parametrize("rows", [WIDE, ROWS])
def test_a_word_is_never_broken(what: str, rows: list[list[object]]) -> None:
    assert any(what in row for row in rows) == (what in table(HEADINGS, rows))


def test_sentences_are_folded_within_their_column() -> None:
    shown = table(("state", "reason"), [["waits", LONG], ["runs", "-"]]).splitlines()
    assert shown[0] == "state  reason"
    assert [line[:5].strip() for line in shown] == ["state", "waits", "", "runs"]
    assert " ".join(line[7:] for line in shown[1:3]) == LONG


def test_rows_that_cannot_be_folded_become_blocks() -> None:
    first, second = table(HEADINGS, WIDE).split("\n\n")
    assert first.splitlines()[:4] == [
        f"name          {ID}",
        "state         false",
        "committed at  -",
        "path",
    ]
    assert second.splitlines()[:3] == ["name", f"  {URL}", "state         status, reason"]


def test_a_pipe_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert len(table(HEADINGS, WIDE).splitlines()) == 3
    assert folded(LONG * 5) == LONG * 5


def test_a_terminal_is_asked_for_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    import termios

    monkeypatch.delenv("COLUMNS")
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as terminal:
            assert output.width_of(terminal) is None  # Nobody has said how wide it is.
            termios.tcsetwinsize(terminal.fileno(), (24, 50))
            assert output.width_of(terminal) == 50
    finally:
        os.close(ours)


def test_no_code_of_a_terminal_comes_through_from_data() -> None:
    assert cell("red \x1b[31m\nnext") == r"red \x1b[31m\nnext"


def test_what_json_has_no_number_for_is_not_taken_for_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = {"a": math.nan, "b": [math.inf, None], "c": {"d": -math.inf}, "e": b"x", "f": 1.5}
    emit(plain(row), as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "a": "NaN",
        "b": ["Infinity", None],
        "c": {"d": "-Infinity"},
        "e": "x",
        "f": 1.5,
    }


def test_an_error_is_folded_and_its_fix_stands_apart(capsys: pytest.CaptureFixture[str]) -> None:
    report(NotFound(f"{LONG}: {LONG}", remedy=f"Ask: {LONG} {LONG}"), as_json=False)
    shown = capsys.readouterr().err
    assert not too_long(shown)
    assert shown.count("error:") == shown.count("\n  fix: ") == 1


def test_a_path_is_printed_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = f"/lake of a person/{LONG}/{LONG}"
    emit({"path": path}, as_json=False, text=path, verbatim=True)
    assert capsys.readouterr().out == f"{path}\n"


@pytest.mark.parametrize("colours", ["FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE"])
def test_the_help_of_every_command_fits_and_is_plain(
    colours: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(colours, "1")
    names = [name.removeprefix("penstock ").split() for name, _ in leaves()]
    for words in [[], *names]:
        typer.main.get_command(build())([*words, "--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert shown.count("Usage:") == len(names) + 1
    assert not too_long(shown)
    assert not [each for each in ("None", "('", "\x1b") if each in shown]
