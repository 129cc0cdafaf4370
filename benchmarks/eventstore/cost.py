"""Processor time of servers, for what limits a line: on few cores, who takes how much of them."""

from __future__ import annotations

from collections.abc import Sequence

import psutil


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time of processes with all their children, ended ones included."""
    total = 0.0
    for pid in pids:
        tree = psutil.Process(pid)
        for process in (tree, *tree.children(recursive=True)):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # Its parent has its time now, or will have at the next look.
            total += times.user + times.system + times.children_user + times.children_system
    return total
