"""Where databases in memory spill to: a folder of this process, in the system's temporary one.

A process that is killed leaves its folder, with all that it spilled. It holds a lock on the folder
as long as it lives, which the system gives back whatever ends it: a number of a process would be
another's one day, or one of another container's. The next process that spills removes the folders
that nobody holds.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PREFIX = "penstock-spill-"
"""Begins the names of these folders; other folders are nobody's business here."""


@dataclass(frozen=True, slots=True)
class _Held:
    """A folder that this process holds by the lock on an open descriptor, and its place."""

    place: str
    folder: Path
    descriptor: int
    process: int


class SpillFolders:
    """The folder that one process spills into. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: _Held | None = None

    def folder(self) -> Path:
        """Return the folder of this process; where none can be made, the temporary one itself.

        A database that spills there says then what is wrong with it.
        """
        place = tempfile.gettempdir()
        with self._lock:
            held = self._held
            # A child that was forked off spills to a folder of its own: this one ends before.
            known = held is not None and (held.place, held.process) == (place, os.getpid())
            if held is None or not known or not held.folder.is_dir():
                try:
                    held = _made(place)
                except OSError:
                    return Path(place)
                if self._held is None:
                    atexit.register(self.remove)
                self._held = held
                _remove_left(place, held.folder)
        return held.folder

    def remove(self) -> None:
        """Remove the folder, at the end of the process that made it."""
        held, self._held = self._held, None
        if held is not None and held.process == os.getpid():
            shutil.rmtree(held.folder, ignore_errors=True)
            os.close(held.descriptor)


def _made(place: str) -> _Held:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        with suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            except OSError:
                # A disk without locks: who asks would have one more folder each time.
                os.close(descriptor)
                folder.rmdir()
                raise
            if folder.is_dir():
                return _Held(place, folder, descriptor, os.getpid())
            # Another process began to remove it before it was held.
            os.close(descriptor)


def _remove_left(place: str, own: Path) -> None:
    for folder in Path(place).glob(f"{PREFIX}*"):
        if folder == own:
            continue
        # It is held, another user's, or removed by somebody else just now.
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)


_of_process = SpillFolders()


def spill_folder() -> Path:
    """Return the folder of this process to spill into; what is there ends with the process."""
    return _of_process.folder()
