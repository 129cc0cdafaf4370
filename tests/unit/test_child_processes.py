"""Children step back behind the whole process that they are of, wherever Linux counts that."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lake import child_processes
from lake.child_processes import NICENESS, SESSION_NICENESS, start_child

GROUPS = Path("/proc/self/autogroup")


def test_a_child_has_a_session_of_its_own_that_steps_back() -> None:
    with start_child() as child:
        wanted = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == wanted
        assert os.getsid(child.pid) == child.pid
        if GROUPS.exists() and (own := GROUPS.read_text().split()):
            told = Path(f"/proc/{child.pid}/autogroup").read_text().split()
            assert told[0] != own[0]
            assert int(told[-1]) == min(19, int(own[-1]) + SESSION_NICENESS)
        child.kill()


def test_a_session_that_may_not_step_back_just_now_does_so_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[str] = []

    def refusing_twice(_: Path, text: str) -> int:
        written.append(text)
        if len(written) < 3:
            raise BlockingIOError
        return len(text)

    pauses: list[float] = []
    monkeypatch.setattr(Path, "read_text", lambda _: "/autogroup-25 nice 16\n")
    monkeypatch.setattr(Path, "write_text", refusing_twice)
    monkeypatch.setattr(child_processes, "time", SimpleNamespace(sleep=pauses.append))
    with start_child() as child:
        child.kill()
    assert written == ["19"] * 3
    assert len(pauses) == 2
    assert min(pauses) >= 0.1


def test_a_child_starts_where_there_are_no_such_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: "")
    monkeypatch.setattr(Path, "write_text", lambda *_: pytest.fail("there is nothing to write"))
    with start_child() as child:
        child.kill()
