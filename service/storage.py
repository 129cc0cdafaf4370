"""Stops appends before a disk is full: PostgreSQL must keep room to recover and to vacuum."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from kernel.errors import StorageFull

_CHECK_EVERY_S = 1.0


class StorageGuard:
    """Looks at the free space of some folders, at most once a second."""

    def __init__(self, folders: tuple[Path, ...], min_free_bytes: int) -> None:
        self._folders = folders
        self._min_free_bytes = min_free_bytes
        self._checked_at: float | None = None
        self._full: StorageFull | None = None

    def check(self) -> None:
        """Return when all folders have room. Raises `StorageFull` when one has not."""
        now = time.monotonic()
        if self._checked_at is None or now - self._checked_at >= _CHECK_EVERY_S:
            self._checked_at = now
            self._full = next(filter(None, map(self._look, self._folders)), None)
        if self._full is not None:
            raise self._full

    def _look(self, folder: Path) -> StorageFull | None:
        try:
            free = shutil.disk_usage(folder).free
        except OSError:
            return None  # Not a folder of this machine, or not ours to see.
        if free >= self._min_free_bytes:
            return None
        return StorageFull(
            f"{folder} has {free} bytes free, {self._min_free_bytes} are kept in reserve",
            free_bytes=free,
            min_free_bytes=self._min_free_bytes,
        )
