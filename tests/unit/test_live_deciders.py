"""Deciders follow their files, whatever loading them meets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventstore import workspace_files
from eventstore.deciders import live_deciders
from eventstore.deciders.live_deciders import LiveDeciders
from eventstore.deciders.workspace_code import PATTERNS, ToldCode
from kernel.errors import Unavailable


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_files, "_EVERY_S", 0.01)
    monkeypatch.setattr(live_deciders, "_LOOK_S", 0.01)


class Loaded:
    """Code that was loaded, as far as whoever follows the files looks at it."""

    told = ToldCode()
    lost = False

    def close(self) -> None:
        """End nothing."""


def live(workspace: Path, begin: Callable[[], Any]) -> LiveDeciders:
    seen = workspace_files.stamp_of(workspace, PATTERNS)
    nothing: Any = None
    return LiveDeciders(workspace, None, begin, seen, nothing, nothing, nothing, dsn="")


async def follow(deciders: LiveDeciders, done: Callable[[], bool]) -> None:
    async with deciders, asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "no room"), ModuleNotFoundError("theirs")])
def test_files_are_followed_further_whatever_loading_met(tmp_path: Path, error: Exception) -> None:
    loads: list[str | None] = []
    (tmp_path / "deciders").mkdir()

    def begin() -> Loaded:
        loads.append(deciders.trouble)
        (tmp_path / f"deciders/{len(loads)}.py").touch()
        if len(loads) == 1:
            raise error
        return Loaded()

    deciders = live(tmp_path, begin)
    (tmp_path / "deciders/0.py").touch()
    asyncio.run(follow(deciders, lambda: len(loads) > 1 and deciders.trouble is None))
    assert loads[:2] == [None, f"{type(error).__name__}: {error}"]


def test_code_is_loaded_again_when_there_is_room_for_a_process(tmp_path: Path) -> None:
    """Though no file changes any more."""
    loads: list[str | None] = []
    (tmp_path / "deciders").mkdir()

    def begin() -> Loaded:
        loads.append(deciders.trouble)
        if len(loads) < 3:
            raise Unavailable("no process", remedy="Wait.")
        return Loaded()

    deciders = live(tmp_path, begin)
    (tmp_path / "deciders/0.py").touch()
    asyncio.run(follow(deciders, lambda: len(loads) == 3 and deciders.trouble is None))
    assert loads == [None, "no process (Wait.)", "no process (Wait.)"]


def test_a_look_at_the_files_that_fails_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([OSError(errno.EMFILE, "too many"), RuntimeError("no thread"), None, None])

    def look(*_: object) -> workspace_files.Stamp:
        if (error := next(looks)) is not None:
            raise error
        return frozenset({("deciders/a.py", 1, 1)})

    async def first_change() -> None:
        changes = workspace_files.changes(tmp_path, PATTERNS, frozenset())
        await anext(changes)
        await changes.aclose()

    monkeypatch.setattr(workspace_files, "stamp_of", look)
    monkeypatch.setattr(workspace_files, "_EVERY_S", 0)
    asyncio.run(first_change())
    assert next(looks, "seen twice") == "seen twice"
