"""Where a workspace cannot be, and where an answer cannot be shown: said at once, and in words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.cli import main
from kernel.errors import EXIT_FAILED


@pytest.mark.parametrize("call", [["up", "--workspace"], ["init"]])
@pytest.mark.parametrize("mark", ["#", "?", '"'])
def test_a_folder_that_no_stack_can_lie_in_is_refused_before_anything_is_there(
    call: list[str],
    mark: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / f"a {mark}b"
    folder.mkdir()
    monkeypatch.setattr(sys, "argv", ["penstock", *call, str(folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == EXIT_FAILED
    assert f"b{'' if mark == chr(34) else '/lake'}" in capsys.readouterr().err
    assert not [*folder.iterdir()]


def test_a_folder_with_blanks_and_letters_of_any_script_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ä 5% it's 日本"
    monkeypatch.setattr(sys, "argv", ["penstock", "init", str(folder)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert (folder / "penstock.toml").is_file()


def in_the_c_locale(*call: str, cwd: Path) -> str:
    """Run a command where Python takes its words for ASCII; return what it says."""
    here = str(Path(__file__).parents[2])
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": here}
    code = "import sys; from apps.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *call],
        cwd=cwd,
        env={**os.environ, **plain},
        capture_output=True,
        check=False,
    )
    return (done.stdout + done.stderr).decode()


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_an_answer_whose_stream_is_closed_goes_nowhere(closed: str, tmp_path: Path) -> None:
    code = "from apps.cli import main; main()"
    call = [sys.executable, "-c", code, "config", "show", "service"]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *call],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert (done.stdout == b"") == (">&- " in f" {closed} ".replace("2>&-", ""))


def test_an_answer_that_the_locale_has_no_letters_for_is_spelled_out(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[lake]\npath = 'größe'\n")
    assert "gr\\xf6\\xdfe" in in_the_c_locale("config", "show", "lake.path", cwd=tmp_path)


def test_a_word_that_the_locale_has_no_letters_for_names_the_locale(tmp_path: Path) -> None:
    said = in_the_c_locale("stream", "show", "order-größe", cwd=tmp_path)
    assert "set PYTHONUTF8=1" in said
