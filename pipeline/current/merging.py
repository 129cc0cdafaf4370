"""Merges rows into the base of a `current` table: in this process, or in one beside it.

A merge of random keys costs a third to two thirds of a second of a core per million rows, whatever
their number. Done in threads of ingest's own process it takes that time from the epochs, which
readers by name wait for. `MergeBeside` therefore hands it to a child of low priority, which gets
what is left, and which keeps the rows of its bases from one merge to the next (`kept`).

The child (`python -m pipeline.current.merging`) reads requests from its standard input: a line of
JSON, then as many bytes of an Arrow IPC stream as it says; it answers each with a line of JSON. At
the end of its input it ends at once: somebody else may write the base by then.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Protocol, TypedDict

import pyarrow as pa
from deltalake import DeltaTable

from kernel.errors import EXIT_FAILED, EXIT_OK, LeaseLost, PenstockError, Unavailable
from kernel.positions import DeltaVersion, Epoch
from lake.child_processes import answers_of_child, start_child
from lake.file_actions import size_of
from lake.row_bytes import packed, unpacked
from lake.tables import Tables
from lake.writer import ArrowWriter, Guard, reached
from pipeline.current.warm_bases import WRITTEN_AS, KeptBases

_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBase:
    """A base after a merge: its Delta version, how many rows it has, and how many bytes."""

    version: int
    rows: int
    size: int


class _Asked(TypedDict):
    """What stands before the rows of a request; `bytes` is how long they are."""

    path: str
    app_id: str
    epoch: int
    keys: list[str]
    bytes: int


_Request = tuple[_Asked, bytes]


class BaseMerge(Protocol):
    """Merges the newest image per key (with `__op`) into the table at a path, under a guard."""

    def __call__(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> MergedBase:
        """Return the base after the merge. Raises as `TableWriter.merge` does."""
        ...

    def hurry(self) -> None:
        """Give up the merge that another thread is at, which may raise `Unavailable`."""
        ...

    def close(self) -> None:
        """Let go of what the merge holds; nobody calls it at that moment."""
        ...


class MergeHere:
    """Merges in the calling thread, with table handles of its own unless it is given some.

    Safe for several threads, each with a path of its own.
    """

    def __init__(self, *, tables: Tables | None = None) -> None:
        self._tables = tables or Tables()
        self._writer = ArrowWriter(self._tables)

    def __call__(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> MergedBase:
        """See `BaseMerge`."""
        version = self.merge(path, rows, guard, keys)
        table = self._tables.open(path)
        assert table is not None, "it was just merged into"
        count, size = size_of(table)
        return MergedBase(version=version, rows=count, size=size)

    def merge(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> DeltaVersion:
        """Merge, and return the version alone: how large the base is takes a look at its files."""
        return self._writer.merge(path, rows, guard, keys=keys)

    def hurry(self) -> None:
        """A merge here has the caller's own priority."""

    def close(self) -> None:
        """Nothing outlives the process."""


class MergeKept(MergeHere):
    """Keeps the rows of bases for the next merge, which then need not be read.

    Where that does not suit a base, deltalake merges into it (`warm_bases`).
    """

    def __init__(self, kept: KeptBases | None = None, *, tables: Tables | None = None) -> None:
        super().__init__(tables=tables)
        self._kept = kept or KeptBases()

    def merge(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> DeltaVersion:
        """Merge, and return the version alone."""
        table = self._tables.open(path)
        merged = None
        if table is not None and not self.reached(path, table, guard):
            merged = self._kept.merged(path, table, rows, keys)
        if table is None or merged is None or merged.num_rows == 0:
            return super().merge(path, rows, guard, keys)
        before = table.version()
        self._kept.forget(path)
        version = self._writer.replace(table, merged, guard, WRITTEN_AS)
        if version == before + 1:  # Else somebody's commit lies between.
            self._kept.keep(path, version, merged, epoch=int(guard.epoch))
        return version

    def reached(self, path: str, table: DeltaTable, guard: Guard) -> bool:
        """Say whether a base has a guard's epoch, as `writer.reached` does.

        Of a version that a merge here made that is known; from the table it takes a look at its
        log, which is dear where many small tables have a change in every epoch.
        """
        epoch = self._kept.epoch_at(path, table.version())
        return reached(table, guard) if epoch is None else epoch >= guard.epoch

    def in_memory(self, path: str, table: DeltaTable) -> int | None:
        """Return how many bytes the rows of a base take in memory; None where they are not kept."""
        return self._kept.bytes_at(path, table.version())


class MergeBeside:
    """Merges in a child process of low priority, one merge after the other.

    The child starts with the first merge, and anew after one that it did not survive. Safe for
    several threads.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __call__(self, path: str, rows: pa.Table, guard: Guard, keys: Sequence[str]) -> MergedBase:
        """See `BaseMerge`. Raises `Unavailable` as well when the child ends amid the merge."""
        body = packed(rows)
        asked = _Asked(
            path=path,
            app_id=guard.app_id,
            epoch=guard.epoch,
            keys=list(keys),
            bytes=body.size,
        )
        with self._lock:
            if self._child is not None and self._child.poll() is not None:
                self._end()  # It had nothing to do.
            child = self._child = self._child or start_child("pipeline.current.merging")
            try:
                line = _exchange(child, asked, body)
            except BaseException:
                # An answer that is still to come must not be taken for that of the next request.
                child.kill()
                self._end()
                raise
            if not line.endswith(b"\n"):
                code = self._end()
                raise Unavailable(f"the process that merges into {path} ended (exit code {code})")
        return _base_of(line)

    def hurry(self) -> None:
        """Kill the child: its guard says whether the merge was committed."""
        child = self._child
        if child is not None:
            child.kill()

    def close(self) -> None:
        """End the child."""
        with self._lock:
            if self._child is not None:
                self._end()

    def _end(self) -> int:
        assert self._child is not None
        child, self._child = self._child, None
        for stream in (child.stdin, child.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                continue  # What was buffered for a child that is gone.
        try:
            return child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()


def _exchange(child: subprocess.Popen[bytes], asked: _Asked, body: pa.Buffer) -> bytes:
    """Return the line of the answer; less than a line when the child ends."""
    told, answers = child.stdin, child.stdout
    assert told is not None
    assert answers is not None
    try:
        told.write(json.dumps(asked).encode() + b"\n")
        told.write(body)
        told.flush()
        return answers.readline()
    except OSError:
        return b""


def _base_of(line: bytes) -> MergedBase:
    answer = json.loads(line)
    if "lost" in answer:
        raise LeaseLost(answer["lost"])
    if "failed" in answer:
        raise Unavailable(answer["failed"])
    return MergedBase(**answer)


def main() -> None:
    """Serve requests until the input ends."""
    answers = answers_of_child()
    requests: queue.SimpleQueue[_Request] = queue.SimpleQueue()
    threading.Thread(
        target=_receive, args=(sys.stdin.buffer, requests), name="receive", daemon=True
    ).start()
    merge = MergeKept()
    while True:
        answers.write(json.dumps(_answer(merge, *requests.get())).encode() + b"\n")
        answers.flush()


def _receive(given: IO[bytes], requests: queue.SimpleQueue[_Request]) -> None:
    """Take in requests; end the process with its input, also amid a merge: the parent is gone."""
    code = EXIT_FAILED
    try:
        while line := given.readline():
            asked = json.loads(line)
            requests.put((asked, given.read(asked["bytes"])))
        code = EXIT_OK
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(merge: BaseMerge, asked: _Asked, body: bytes) -> dict[str, object]:
    guard = Guard(asked["app_id"], Epoch(asked["epoch"]))
    try:
        rows = unpacked(body)
        return asdict(merge(asked["path"], rows, guard, asked["keys"]))
    except LeaseLost as error:
        return {"lost": error.message}
    except PenstockError as error:
        return {"failed": error.message}
    except Exception as error:
        traceback.print_exc()
        return {"failed": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
