"""What a new user gets wrong, without a stack: the answer says what happened and what to do."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from apps.cli import main
from kernel.errors import EXIT_FAILED, EXIT_UNHEALTHY, EXIT_USAGE

PYTHON = ("Traceback", "Errno", "None", "\x1b", "<class", "list[")

MISTAKES = [
    ("append order-1 --file absent", EXIT_USAGE, "absent cannot be opened: No such file"),
    ("stream import absent", EXIT_USAGE, "absent cannot be opened: No such file"),
    ("schema add order.placed absent", EXIT_USAGE, "absent cannot be read: No such file"),
    ("projection apply absent.sql", EXIT_USAGE, "absent.sql cannot be read: No such file"),
    ("append order-1 placed {bad", EXIT_USAGE, "DATA is not JSON"),
    ("append order-1", EXIT_USAGE, "no event was given"),
    ("command account 1 open --data [1]", EXIT_USAGE, "expected a JSON object"),
    ("read order-1", EXIT_UNHEALTHY, "does not answer: Connection refused"),
    ("read --limit many", EXIT_USAGE, "expected a whole number, found 'many'"),
    ("read --limit 0", EXIT_USAGE, "expected 1 or more, found 0"),
    ("read --limt 3", EXIT_USAGE, "--limit"),
    ("wait --timeout soon", EXIT_USAGE, "expected a number, found 'soon'"),
    ("raed", EXIT_USAGE, "Did you mean 'read'"),
    ("stream shwo order-1", EXIT_USAGE, "Did you mean 'show'"),
    ("schema add a.b f --compatibility wide", EXIT_USAGE, "expected one of NONE, BACKWARD"),
    ("stream archive --before 3", EXIT_USAGE, "--before is about one stream"),
    ("subscription create audit --start now", EXIT_USAGE, "is no position"),
    ("source list", EXIT_FAILED, "penstock up"),
    ("table list", EXIT_FAILED, "there is no lake"),
    ("logs nothing", EXIT_FAILED, "no log of 'nothing'"),
    ("up --only nothing", EXIT_USAGE, "no part 'nothing'"),
]


@pytest.mark.parametrize(("words", "code", "said"), MISTAKES, ids=[each[0] for each in MISTAKES])
def test_a_mistake_is_answered_in_words(
    words: str,
    code: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_SERVICE_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(sys, "argv", ["penstock", *words.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capfd.readouterr()
    assert ended.value.code == code
    assert said in shown.err
    assert not shown.out
    assert not [each for each in PYTHON if each in shown.err]
