"""A real disk that is small: a file system in memory, mounted by whoever runs the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MOUNT = 'mount -t tmpfs -o size="$1"m,mode=755 tmpfs "$0"'


@contextmanager
def small_disk(folder: Path, size_mb: int) -> Iterator[Path]:
    """Mount a disk of `size_mb` and yield its folder.

    Who is not root mounts it in a namespace of its own, and reaches it through a process there.
    """
    folder.mkdir()
    arguments = [str(folder), str(size_mb)]
    if os.geteuid() == 0:
        subprocess.run(["sh", "-c", _MOUNT, *arguments], check=True)
        try:
            yield folder
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    with subprocess.Popen(
        ["unshare", "-rm", "sh", "-c", f"{_MOUNT} && echo mounted && exec cat", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as keeper:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == b"mounted\n", "this user may not make namespaces"
        yield Path(f"/proc/{keeper.pid}/root{folder}")
        keeper.kill()


def fill(folder: Path, *, leave_bytes: int) -> Path:
    """Fill a disk up to some bytes; return the file to delete."""
    filler = folder / "filler"
    status = os.statvfs(folder)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_frsize - leave_bytes)
    return filler
