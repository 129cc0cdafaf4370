"""Work on the parts of a step by processes of low priority on this machine.

Where Spark's executors have the cores of the driver, what they do takes these from the epochs.
Children do one part after the other, and answer with what they hand back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pyarrow as pa

from kernel.errors import Unavailable
from lake.child_processes import Child
from lake.executor_tasks import Task, WrittenFile, handed_of, heard
from lake.row_bytes import packed, unpacked


class TaskProcesses:
    """Has each part done by one of some children, which live as long as the task."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or len(os.sched_getaffinity(0))
        self._children: set[Child] = set()
        self._over = False

    def __call__(self, task: Task, parts: int) -> list[WrittenFile] | None:
        """See `Tasks`. Raises `Unavailable` when a child ends amid its work."""
        count = min(self._most, parts)
        if count == 0:
            return []
        numbers = [list(range(first, parts, count)) for first in range(count)]
        with ThreadPoolExecutor(count, thread_name_prefix="task") as pool:
            handed = list(pool.map(lambda own: self._done(task, own), numbers))
        return heard(pa.concat_tables(handed))

    def close(self) -> None:
        """Kill what is at work, and begin no more."""
        self._over = True
        for child in list(self._children):
            child.stop()

    def _done(self, task: Task, numbers: Sequence[int]) -> pa.Table:
        child = Child(partial(_parts_of, task))
        self._children.add(child)
        try:
            if self._over:
                raise Unavailable("the work of this run is over")
            with closing(child):
                return unpacked(child.ask(numbers))
        finally:
            self._children.discard(child)


def _parts_of(task: Task) -> Callable[[Sequence[int]], pa.Buffer]:
    """Return what does the parts of some numbers, and hands back what they do."""
    return lambda numbers: packed(pa.Table.from_batches([handed_of(task, n) for n in numbers]))
