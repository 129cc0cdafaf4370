"""Changes of a workspace's files, noticed by looking at their times and sizes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from pathlib import Path

_log = logging.getLogger("penstock.files")
Stamp = frozenset[tuple[str, int, int]]
"""Path, time of change in nanoseconds and size of each file."""

_EVERY_S = 0.5
_SHARE = 50
"""A look that takes long is repeated the more seldom: at most this part of one core is spent."""


def stamp_of(workspace: Path, patterns: tuple[str, ...]) -> Stamp:
    """Return what tells the present state of a workspace's files from any other."""
    found = set()
    for pattern in patterns:
        for path in workspace.glob(pattern):
            try:
                state = path.stat()
            except OSError:
                continue  # It went away meanwhile, as the next look will see.
            found.add((str(path), state.st_mtime_ns, state.st_size))
    return frozenset(found)


async def changes(
    workspace: Path, patterns: tuple[str, ...], since: Stamp
) -> AsyncGenerator[None, None]:
    """Yield whenever files differ from what they were at the last yield, at first from `since`.

    What is being written is waited for: two looks, one after another, must see the same. A look
    that fails, as when too many files are open, is repeated. Without end.
    """
    before = since
    while True:
        started = time.monotonic()
        try:
            now = await asyncio.to_thread(stamp_of, workspace, patterns)
        except (OSError, RuntimeError) as error:  # The latter where no thread can be begun.
            _log.warning("the files of %s cannot be looked at: %s", workspace, error)
            await asyncio.sleep(_EVERY_S)
            continue
        took_s = time.monotonic() - started
        if now == before != since:
            since = now
            yield
        before = now
        await asyncio.sleep(max(_EVERY_S, _SHARE * took_s))
