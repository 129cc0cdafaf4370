"""What runs a part: its log within bounds whatever becomes of the file, and its priority."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stack import shim
from stack.parts import escaped
from stack.shim import Log


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shim, "_LOG_LOOK_S", -1.0)
    return tmp_path / "part.log"


@contextmanager
def logging(path: Path, limit: int) -> Iterator[Log]:
    log = Log(str(path), limit)
    yield log
    log.file.close()


def test_a_full_file_has_one_predecessor(path: Path) -> None:
    with logging(path, 10) as log:
        for line in (b"one-----\n", b"two-----\n", b"three---\n"):
            log.write(line)
    assert path.read_bytes() == b"three---\n"
    assert path.with_name("part.log.1").read_bytes() == b"two-----\n"


@pytest.mark.parametrize("limit", [10, 1000])
def test_a_file_that_was_removed_is_made_again(path: Path, limit: int) -> None:
    with logging(path, limit) as log:
        log.write(b"before--\n")
        path.unlink()
        log.write(b"behind--\n")
    assert path.read_bytes() == b"behind--\n"


def test_lines_are_kept_again_once_there_is_room(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logging(path, 10) as log:
        log.write(b"before--\n")
        with monkeypatch.context() as full:
            full.setattr(shim, "_open_log", lambda _: io.FileIO("/dev/null", "a"))
            log.write(b"lost----\n")
        log.write(b"behind--\n")
    assert path.read_bytes() == b"behind--\n"
    assert path.with_name("part.log.1").read_bytes() == b"before--\n"


@pytest.mark.parametrize("value", ["/data/jürgen/日本/\U0001d4b3", "a\\b c", "plain"])
def test_a_properties_file_has_any_path_in_ascii(value: str) -> None:
    written = escaped(value)
    assert written.isascii()
    read = written.encode().decode("unicode_escape")
    assert read.encode("utf-16", "surrogatepass").decode("utf-16") == value


def test_a_part_that_may_not_step_back_just_now_does_so_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []

    class Busy(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            if len(written) < 3:
                raise BlockingIOError
            return len(text)

    pauses: list[float] = []
    monkeypatch.setattr(shim, "open", lambda *_: Busy(), raising=False)
    monkeypatch.setattr(shim.time, "sleep", pauses.append)
    shim._step_back(1, 7)
    assert written == ["7"] * 3
    assert len(pauses) == 2
    assert min(pauses) >= 0.1
