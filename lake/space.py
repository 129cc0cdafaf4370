"""Keeps a reserve of disk space: better late than half written."""

from __future__ import annotations

from collections.abc import Callable

from lake import storage


class SpaceGuard:
    """Looks at the free space where the lake lies. Sizes in bytes. An object store has no bound."""

    def __init__(
        self,
        folder: str,
        *,
        reserve_bytes: int,
        free_bytes: Callable[[str], int | None] = storage.free_bytes,
    ) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._free_bytes = free_bytes

    def shortage(self) -> str | None:
        """Return why nothing may be written now, with the remedy; None when there is room."""
        free = self._free_bytes(self._folder)
        if free is None or free >= self._reserve_bytes:
            return None
        return (
            f"{free // 2**20} MiB free at {self._folder}, {self._reserve_bytes // 2**20} MiB are "
            "kept in reserve | fix: free space, or lower storage.min_free_bytes; work resumes by "
            "itself. Large tables that change all the time: lower lake.current_retention_bytes and "
            "start the pipeline again"
        )
