"""A child process of low priority that reads and decodes what a lane that is apart has much of.

Decoding takes the interpreter, of which this process has one: the epochs of other lanes would wait
for it at each of their steps. A child (`python -m pipeline.read.lane_process`) has its own, and
gets what they leave of the processors. It is told where to read and by what to decode, then one
range after the other; each is answered by its rows. At the end of its input it ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO

import pyarrow as pa

from kernel.errors import EXIT_OK, Unavailable
from kernel.positions import Offsets
from lake.child_processes import answers_of_child, start_child
from lake.row_bytes import packed, unpacked
from pipeline.decode.records import Router
from pipeline.read.driver_reads import DriverReads
from pipeline.read.kafka_records import decoded_here

MOST_CHILDREN = 4
"""Each takes some 150 MB; who finds no room decodes in this process."""
_LENGTH = 8
"""Bytes before each answer: how long it is."""
_ROOM = threading.BoundedSemaphore(MOST_CHILDREN)


class LaneProcess:
    """Decodes for one lane. The child begins with the first range, and lives until `close`."""

    def __init__(self, bootstrap: str, router: Router) -> None:
        self._told = bootstrap, router
        self._child: subprocess.Popen[bytes] | None = None
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._has_room = False

    def has_room(self) -> bool:
        """Say whether a child is there or may begin: `MOST_CHILDREN` may, in all of this process.

        Room that was found is kept until the child ends.
        """
        with self._lock:
            self._has_room = self._has_room or _ROOM.acquire(blocking=False)
            return self._has_room

    def decoded(self, start: Offsets, end: Offsets, *, most_bytes: int) -> pa.Table | None:
        """Return the records in `[start, end)`, decoded; None where Spark has to read them.

        Raises `TooLarge` for more than `most_bytes`, what decoding raises, and `Unavailable` when
        the child ends or was told to.
        """
        try:
            child = self._running()
            _tell(child.stdin, (start, end, most_bytes))
            answer = _heard(child.stdout)
        except (OSError, EOFError) as error:
            self._kill()
            raise Unavailable("the process that decodes a lane ended amid its work") from error
        kind, said = answer[:1], answer[1:]
        if kind == _ERROR:
            raise pickle.loads(said)
        return unpacked(said) if kind == _ROWS else None

    def interrupt(self) -> None:
        """Have the child end at once, and none begin; of another thread, which waits for rows."""
        self._over.set()
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the child."""
        self._kill()

    def _running(self) -> subprocess.Popen[bytes]:
        begins = self._child is None
        if begins and not self._over.is_set():
            self._child = start_child("pipeline.read.lane_process")
        # Asked again behind the start: who interrupts meanwhile found no child to end.
        if self._child is None or self._over.is_set():
            raise EOFError
        if begins:
            _tell(self._child.stdin, self._told)
        return self._child

    def _kill(self) -> None:
        with self._lock:
            child, self._child = self._child, None
            had, self._has_room = self._has_room, False
        if child is not None:
            child.kill()
            with suppress(OSError), child:
                pass
        if had:
            _ROOM.release()


_ROWS, _ERROR, _SPARK = b"r", b"e", b"s"


def _tell(pipe: IO[bytes] | None, what: object) -> None:
    assert pipe is not None, "a child has pipes"
    pickle.dump(what, pipe)
    pipe.flush()


def _heard(pipe: IO[bytes] | None) -> memoryview:
    assert pipe is not None, "a child has pipes"
    size = int.from_bytes(_all_of(pipe, _LENGTH), "big")
    return memoryview(_all_of(pipe, size))


def _all_of(pipe: IO[bytes], size: int) -> bytes:
    read = pipe.read(size)
    if len(read) < size:
        raise EOFError
    return read


def _answer(reads: DriverReads, router: Router, asked: tuple[Offsets, Offsets, int]) -> bytes:
    start, end, most_bytes = asked
    try:
        records = reads.read(start, end, most_bytes=most_bytes)
        if records is None:
            return _SPARK
        rows = decoded_here(records, router)
    except Exception as error:
        return _ERROR + _pickled(error)
    return _ROWS + bytes(packed(rows))


def _pickled(error: Exception) -> bytes:
    try:
        said = pickle.dumps(error)
        pickle.loads(said)  # Errors of others are written down, and not always read again.
        return said
    except Exception:
        return pickle.dumps(Unavailable(f"a lane cannot be decoded: {error!r}"))


def main() -> None:
    """Answer one question after the other."""
    answers, asked = answers_of_child(), sys.stdin.buffer
    bootstrap, router = pickle.load(asked)
    reads = DriverReads(bootstrap)
    while True:
        try:
            answer = _answer(reads, router, pickle.load(asked))
        except EOFError:
            os._exit(EXIT_OK)
        answers.write(len(answer).to_bytes(_LENGTH, "big"))
        answers.write(answer)
        answers.flush()


if __name__ == "__main__":
    main()
