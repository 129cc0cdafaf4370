"""Lines of progress say what a person understands, and nothing while nothing moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from apps.cli import output, wait
from replay.progress import BuildProgress
from service.caught_up import Behind
from stack import progress
from stack.lock import read_lock


def replayed(*, slice_: int, rate: float, eta_s: tuple[float, float] | None) -> BuildProgress:
    return BuildProgress(
        rows=1_200,
        done=300,
        slice=slice_,
        slices=4,
        rate=rate,
        eta_s=eta_s,
        behind_rows=900,
        behind_s=12.0,
    )


def test_before_the_first_slice_nothing_is_said_of_the_time_left() -> None:
    line = replayed(slice_=0, rate=0.0, eta_s=None).line
    assert line == (
        "300 of 1,200 rows, slice 0 of 4, time left: known after the first slice, "
        "900 rows and 12 s behind its input"
    )


def test_what_is_behind_is_not_told_again_because_seconds_pass(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    show = output.shower(wait._line, same_every_s=10.0, gist=wait._gist)
    for second in range(1, 25):
        now[0] = float(second)
        show(
            Behind(events=2 if second < 4 else 0, seconds=float(second), missing=("typed tables",))
        )
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(" s behind")[0] for line in said] == [
        *("2 events, 1.0", "0 events, 4.0", "0 events, 14.0", "0 events, 24.0")
    ]


def test_afterwards_rate_and_time_left_are_told() -> None:
    told = replayed(slice_=1, rate=250.0, eta_s=(3.0, 9.0))
    assert "slice 1 of 4, 250 rows/s, 3 to 9 s left, " in told.line
    unknown = replace(told, behind_s=None)
    assert unknown.line.endswith(", 900 rows behind its input")


def test_a_download_is_told_when_something_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_EVERY_S", 0.0)
    told: list[str] = []
    watched = progress.DownloadProgress(read_lock()[:2], tmp_path, told.append)
    for _ in range(3):
        watched.tick()
    assert told == []
    folder = tmp_path / "org" / "name" / "jars"
    folder.mkdir(parents=True)
    (folder / "one.jar").write_bytes(b"x" * 2_000_000)
    for _ in range(3):
        watched.tick()
    watched.done()
    assert [line.partition(",")[0] for line in told] == ["jars: 1/2 files"]
