"""Work on the parts of a step by processes of low priority on this machine.

Where Spark's executors have the cores of the driver, what they do takes these from the epochs. A
child (`python -m lake.task_processes`) reads a task and the numbers of its parts, does one after
the other, and answers with what they hand back. At the end of its input it ends at once.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import IO

import pyarrow as pa

from kernel.errors import EXIT_FAILED, EXIT_OK, Unavailable
from lake.child_processes import answers_of_child, start_child
from lake.executor_tasks import Task, WrittenFile, handed_of, heard


class TaskProcesses:
    """Has each part done by one of some children, which live as long as the task."""

    def __init__(self, most: int | None = None) -> None:
        self._most = most or len(os.sched_getaffinity(0))
        self._children: set[subprocess.Popen[bytes]] = set()
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
            child.kill()

    def _done(self, task: Task, numbers: Sequence[int]) -> pa.Table:
        with self._child() as child:
            told, answers = child.stdin, child.stdout
            assert told is not None
            assert answers is not None
            try:
                pickle.dump((task, numbers), told)
                told.flush()
                return pa.ipc.open_stream(answers.read()).read_all()
            except (OSError, pa.ArrowInvalid) as error:
                child.kill()
                with suppress(OSError):
                    told.close()  # What is left for the child would be written once more.
                raise Unavailable(f"a process of a large fold ended ({child.wait()})") from error

    @contextmanager
    def _child(self) -> Iterator[subprocess.Popen[bytes]]:
        if self._over:
            raise Unavailable("the work of this run is over")
        with start_child("lake.task_processes") as child:
            self._children.add(child)
            try:
                yield child
            finally:
                self._children.discard(child)


def main() -> None:
    """Do the parts that the input tells."""
    answers = answers_of_child()
    task, numbers = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    batches = [handed_of(task, number) for number in numbers]
    with pa.ipc.new_stream(answers, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    answers.flush()
    os._exit(EXIT_OK)


def _end_with(given: IO[bytes]) -> None:
    given.read()
    os._exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
