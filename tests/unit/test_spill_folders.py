"""What databases in memory spill goes with their process, or with the next one that begins."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lake.spill_folders import PREFIX, SpillFolders
from projections.run.database import Database

SPILLING = """
from projections.run.database import Database
made = Database(memory_bytes=24 * 2**20)
rows = "SELECT range AS a, repeat('x', 40) || range AS b FROM range(600000)"
made.connection.execute(f"CREATE TEMP TABLE kept AS {rows}")
print("spilled", flush=True)
input()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def spilling(place: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SPILLING],
        env=os.environ | {"TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "spilled\n"
    return process


def spilled_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def test_what_a_killed_process_spilled_goes_with_the_next_start(place: Path) -> None:
    living, killed = spilling(place), spilling(place)
    try:
        assert len([*place.iterdir()]) == 2, "who lives is left alone"
        before = {*place.iterdir()}
        assert all(spilled_bytes(folder) > 2**20 for folder in before)
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
        assert killed.returncode == -signal.SIGKILL
        assert {*place.iterdir()} == before, "nobody is there to remove it"
        (place / "penstock-other").mkdir()
        folders = SpillFolders()
        own = folders.folder()
        left = {*place.iterdir()} - {own, place / "penstock-other"}
        assert len(left) == 1
        assert spilled_bytes(*left) > 2**20, "of the one that lives"
        folders.remove()
    finally:
        living.communicate("\n", timeout=60)
    assert living.returncode == 0
    assert {*place.iterdir()} == {place / "penstock-other"}, "who ends takes its own along"


def test_a_folder_that_somebody_removed_is_made_again(place: Path) -> None:
    folders = SpillFolders()
    own = folders.folder()
    assert folders.folder() == own
    own.rmdir()
    again = folders.folder()
    assert again != own
    assert [*place.iterdir()] == [again]
    folders.remove()
    assert not [*place.iterdir()]


def test_a_child_spills_to_a_folder_of_its_own(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = SpillFolders()
    own = folders.folder()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        assert folders.folder() != own
    assert own.is_dir()


def test_a_link_of_that_name_is_not_followed(place: Path) -> None:
    beside = place / "beside"
    beside.mkdir()
    (place / f"{PREFIX}link").symlink_to(beside)
    (beside / "file").touch()
    SpillFolders().folder()
    assert (beside / "file").exists()


def test_where_no_folder_can_be_made_a_database_opens_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = place / "file"
    nowhere.touch()
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere))
    assert SpillFolders().folder() == nowhere
    database = Database()
    assert database.connection.execute("SELECT 1").fetchall() == [(1,)]
    database.close()


def test_a_disk_without_locks_is_spilled_to_without_a_folder_or_a_descriptor_for_each_time(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses to lock what is open to be read alone."""

    def refused(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr(fcntl, "flock", refused)
    folders, before = SpillFolders(), os.listdir("/proc/self/fd")
    assert [folders.folder() for _ in range(5)] == [place] * 5
    assert not [*place.iterdir()]
    assert len(os.listdir("/proc/self/fd")) == len(before)
