"""How much memory the processes of a part hold."""

from __future__ import annotations

import psutil


def resident_mb(pid: int) -> int:
    """Return what a process and all its descendants hold, in megabytes; 0 when it is gone.

    Shared pages are divided among those who share them where the system tells, else they count
    once per process. The kernel walks every page for that, so it is not for polling.
    """
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    return round(sum(map(_resident_bytes, tree)) / 1e6)


def _resident_bytes(process: psutil.Process) -> int:
    """Return a process's share of memory: shared pages divided among those who share them."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        pass
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
