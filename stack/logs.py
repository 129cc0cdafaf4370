"""Read the parts' logs: the last lines, and the next ones as they come."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

_CHUNK_BYTES = 256 * 1024
_POLL_S = 0.2
_TAIL_BYTES = 4096
_TAIL_LINES = 6


def last_words(path: Path) -> str:
    """Return the last lines of a log in one, or what there is instead of them.

    What a part says at each of its deaths is there once.
    """
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return "(no log)"
    different = list(dict.fromkeys(line.strip() for line in lines))
    return " | ".join(different[-_TAIL_LINES:]) or "(nothing printed)"


def tail(files: Sequence[Path], *, lines: int, follow: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (part, line): the last `lines` of each file, then with `follow` new ones for ever.

    A log that is rotated meanwhile is read on from the start of its new file.
    """
    offsets: dict[Path, tuple[int, int]] = {}
    for path in files:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - _CHUNK_BYTES))
            content = file.read()
            offsets[path] = (path.stat().st_ino, file.tell())
        for line in content.decode("utf-8", "replace").splitlines()[-lines:] if lines else []:
            yield path.stem, line
    while follow:
        for path in files:
            offsets[path], fresh = _new_lines(path, *offsets[path])
            yield from ((path.stem, line) for line in fresh)
        time.sleep(_POLL_S)


def _new_lines(path: Path, inode: int, offset: int) -> tuple[tuple[int, int], list[str]]:
    try:
        with path.open("rb") as file:
            now = path.stat().st_ino
            file.seek(offset if now == inode else 0)
            content = file.read()
            # A line that is still being written waits for its end.
            whole = content[: content.rfind(b"\n") + 1]
            start = offset if now == inode else 0
            return (now, start + len(whole)), whole.decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return (inode, offset), []
