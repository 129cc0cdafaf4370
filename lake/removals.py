"""`lake/_removals`: which files are about to be removed, told before anybody looks who needs them.

Removing and keeping are two processes, each of which says first what it is about to do and looks
then at what the other one has said:

    remover: 1 announce the files  2 ask which ones are held     3 remove the others  4 take it back
    taker:   1 hold the files      2 ask which ones were announced  3 see that all are there

Of two that meet, one sees the other, in whatever order their steps come and however long one of
them stands still between two of them. A process that dies between 1 and 4 leaves its announcement:
nobody can keep these files any more, which is right, as it may only be slow.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from kernel.errors import is_no_room
from lake import storage
from lake.layout import Lake

AT_ONCE = 1000
"""Files of one announcement."""
_UNFINISHED_AFTER_S = 3600.0
RESERVE_BYTES = 2**18
"""Of an announcement that is made where there is no room for one: paths of some 260 bytes."""
_RESERVE = "reserve"
_BLANK = b"\n"


class Keeper(Protocol):
    """Knows which old files somebody needs. Whoever removes files of a table asks it to."""

    def held_in(self, root: str) -> frozenset[str]:
        """Return the files, by path below a table's root, that stay."""
        ...

    def remove(self, root: str, paths: Sequence[str]) -> list[str]:
        """Remove those files of a table that nobody needs; return them."""
        ...


class Nobody:
    """Needs no old file."""

    def held_in(self, root: str) -> frozenset[str]:
        """Return nothing."""
        return frozenset()

    def remove(self, root: str, paths: Sequence[str]) -> list[str]:
        """Remove all of them."""
        place = storage.place_of(root)[1]
        for path in paths:
            storage.remove_file(root, f"{place}/{path}")
        return [*paths]


NOBODY = Nobody()


class Removals:
    """The announcements of one lake: a file for each, with a line for each path."""

    def __init__(self, lake: Lake) -> None:
        self._root = lake.root
        self._folder = f"{lake.root}/_removals"

    @contextmanager
    def announced(self, root: str, paths: Sequence[str]) -> Iterator[None]:
        """Announce files of a table at `root` for the time of the block.

        After an error they stay announced: which ones were removed is not known.
        """
        storage.make_folder(self._folder)
        file = f"{storage.place_of(self._folder)[1]}/{uuid.uuid4().hex}"
        lines = "".join(f"{self._key(root, path)}\n" for path in paths)
        # Of a part of it somebody could think that all was removed, and take it back.
        reserved = self._write(file, lines.encode())
        yield
        if reserved:
            storage.write_over(self._folder, file, _BLANK * RESERVE_BYTES, self._reserve)
        else:
            storage.remove_file(self._folder, file)

    def among(self, root: str, paths: Sequence[str]) -> list[str]:
        """Return those files of a table that are announced."""
        going = {key for keys in self._told().values() for key in keys}
        return [path for path in paths if self._key(root, path) in going]

    def forget_done(self) -> None:
        """Take back announcements of processes that died after they had removed every file.

        One that names no file is of a process that may still be about to write them. What was
        never written to its end goes after an hour: whoever still writes it fails, and has removed
        nothing.
        """
        before = time.time() - _UNFINISHED_AFTER_S
        for file in storage.files_in(self._folder):
            if file.name.endswith(storage.UNFINISHED) and file.written < before:
                storage.remove_file(self._folder, file.path)
        self._keep_reserve()
        files, place = storage.place_of(self._root)
        for announcement, keys in self._told().items():
            if not keys:
                continue
            found = files.get_file_info([f"{place}/{key}" for key in keys])
            if all(info.type.name == "NotFound" for info in found):
                storage.remove_file(self._folder, announcement)

    @property
    def _reserve(self) -> str:
        return f"{storage.place_of(self._folder)[1]}/{_RESERVE}"

    def _write(self, file: str, lines: bytes) -> bool:
        """Write an announcement; say whether it took the reserve, as there was no room.

        Nothing could ever be removed from a full disk, if it took room to say so.
        """
        try:
            storage.write_whole(self._folder, file, lines)
        except OSError as error:
            local = storage.is_local(self._folder) and len(lines) <= RESERVE_BYTES
            if not is_no_room(error) or not local:
                raise
            storage.remove_file(self._folder, f"{file}{storage.UNFINISHED}")
            try:
                storage.write_over(self._folder, self._reserve, lines, file)
            except FileNotFoundError:
                raise error from None
            return True
        return False

    def _keep_reserve(self) -> None:
        """Have a file that an announcement can be written over, on a disk that has room for it."""
        if not storage.is_local(self._folder):
            return
        if any(file.name == _RESERVE for file in storage.files_in(self._folder)):
            return
        try:
            storage.make_folder(self._folder)
            storage.write_whole(self._folder, self._reserve, _BLANK * RESERVE_BYTES)
        except OSError:
            with suppress(OSError):
                storage.remove_file(self._folder, f"{self._reserve}{storage.UNFINISHED}")

    def _told(self) -> dict[str, list[str]]:
        """Return the announced files by announcement.

        One that is not written to its end says nothing yet: its process has not looked yet who
        holds what.
        """
        told: dict[str, list[str]] = {}
        for file in storage.files_in(self._folder):
            if file.name == _RESERVE or file.name.endswith(storage.UNFINISHED):
                continue
            try:
                lines = storage.read(self._folder, file.path).decode().splitlines()
            except FileNotFoundError:
                continue  # What was announced was done since it was listed.
            told[file.path] = [line for line in lines if line]
        return told

    def _key(self, root: str, path: str) -> str:
        # From the lake's root on: another process may know the lake by another path.
        return f"{root.removeprefix(self._root)}/{path}".lstrip("/")
