"""The process that merges bases: what it makes, and what becomes of it when somebody dies."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from kernel.errors import LeaseLost, Unavailable
from kernel.positions import Epoch
from lake import child_processes
from lake.child_processes import NICENESS, Child, answered
from lake.layout import Lake, current_name
from lake.row_bytes import packed
from lake.tables import Tables
from lake.writer import OP, Guard
from pipeline.current import merging
from pipeline.current import tail as tail_module
from pipeline.current.fold_policy import FoldPolicy
from pipeline.current.merging import MergeBeside, MergeHere
from pipeline.current.tables import CurrentTables
from pipeline.current.tail import TailTables
from tests.support.lake.folding import (
    SOURCE,
    TABLE,
    Done,
    State,
    apply,
    changes,
    registry,
    state_of,
)
from tests.support.services.waiting import until

MODULE = "lake.child_processes"


def images(*rows: tuple[int, str, str]) -> pa.Table:
    ids, names, ops = zip(*rows, strict=True)
    return pa.table({"id": pa.array(ids, pa.int64()), "name": list(names), OP: list(ops)})


FIRST = images((1, "one", "upsert"), (2, "two", "upsert"), (3, "three", "upsert"))
SECOND = images((2, "zwei", "upsert"), (3, "three", "delete"), (4, "four", "upsert"))


def children() -> list[psutil.Process]:
    """Return the merging processes of this one, whatever else it has started."""
    return [child for child in psutil.Process().children() if MODULE in command_of(child)]


def command_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []  # It has ended; nobody has reaped it yet, or somebody just has.


@pytest.fixture
def merge() -> Iterator[MergeBeside]:
    made = MergeBeside()
    yield made
    made.close()
    assert not children()


def rows_of(path: Path) -> list[dict[str, object]]:
    table = Tables().read(str(path))
    assert table is not None
    return table.sort_by("id").to_pylist()


def test_a_merge_beside_makes_what_a_merge_here_makes(merge: MergeBeside, tmp_path: Path) -> None:
    here = MergeHere()
    for number, rows in enumerate((FIRST, SECOND, SECOND.slice(0, 1)), 1):
        guard = Guard("base", Epoch(number))
        beside = merge(str(tmp_path / "a"), rows, guard, ["id"])
        assert beside.version == here(str(tmp_path / "b"), rows, guard, ["id"]).version
    assert rows_of(tmp_path / "a") == rows_of(tmp_path / "b")
    assert [row["name"] for row in rows_of(tmp_path / "a")] == ["one", "zwei", "four"]
    assert beside.rows == 3
    assert beside.size > 0
    operations = [DeltaTable(str(tmp_path / at)).history(1)[0]["operation"] for at in "ab"]
    assert operations == ["WRITE", "MERGE"], "the child merges in memory"
    again = merge(str(tmp_path / "a"), FIRST, Guard("base", Epoch(3)), ["id"])
    assert again == beside, "an epoch that the base has changes nothing"


def test_it_runs_with_low_priority_and_does_not_mind_an_interrupt(
    merge: MergeBeside, tmp_path: Path
) -> None:
    merge(str(tmp_path / "a"), FIRST, Guard("base", Epoch(1)), ["id"])
    (child,) = children()
    assert child.nice() == min(19, os.nice(0) + NICENESS)
    child.send_signal(signal.SIGINT)
    merge(str(tmp_path / "a"), SECOND, Guard("base", Epoch(2)), ["id"])
    assert children() == [child]


def test_a_child_that_is_killed_amid_a_merge_is_told_and_started_again(
    merge: MergeBeside, tmp_path: Path
) -> None:
    path = str(tmp_path / "a")
    merge(path, FIRST, Guard("base", Epoch(1)), ["id"])
    children()[0].suspend()
    threading.Timer(0.3, merge.hurry).start()
    with pytest.raises(Unavailable, match=r"ended amid its work \(exit code -9\)"):
        merge(path, SECOND, Guard("base", Epoch(2)), ["id"])
    assert merge(path, SECOND, Guard("base", Epoch(2)), ["id"]).rows == 3
    assert [row["name"] for row in rows_of(tmp_path / "a")] == ["one", "zwei", "four"]


def test_a_child_that_died_idle_is_replaced_without_a_word(
    merge: MergeBeside, tmp_path: Path
) -> None:
    merge(str(tmp_path / "a"), FIRST, Guard("base", Epoch(1)), ["id"])
    child = merge._child.process
    assert child is not None
    child.kill()
    until(lambda: child.poll() is not None, "the child has ended")
    assert merge(str(tmp_path / "a"), SECOND, Guard("base", Epoch(2)), ["id"]).rows == 3


def test_modules_of_the_working_directory_are_not_taken_for_ours(
    merge: MergeBeside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline works in its workspace, which may have a folder of that name."""
    for name in ("queue.py", "projections.py"):
        (tmp_path / name).write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(tmp_path)
    assert merge(str(tmp_path / "a"), FIRST, Guard("base", Epoch(1)), ["id"]).rows == 3


def test_threads_get_the_answers_to_their_own_requests(merge: MergeBeside, tmp_path: Path) -> None:
    def work(number: int) -> list[int]:
        rows = images(*((i, "x", "upsert") for i in range(number)))
        path = str(tmp_path / str(number))
        return [merge(path, rows, Guard("base", Epoch(e)), ["id"]).rows for e in (1, 2, 3)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(1, 5))) == [[n, n, n] for n in range(1, 5)]
    assert len(children()) == 1


def test_a_request_that_cannot_be_read_ends_the_child() -> None:
    child = subprocess.run(
        [sys.executable, "-m", MODULE], input=b"{\n", capture_output=True, timeout=60, check=False
    )
    assert child.returncode == 1
    assert b"UnpicklingError" in child.stderr


def test_what_cannot_be_merged_is_an_error_and_the_child_goes_on(
    merge: MergeBeside, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="Error"):
        merge(str(tmp_path / "file"), FIRST, Guard("base", Epoch(1)), ["id"])
    assert merge(str(tmp_path / "a"), FIRST, Guard("base", Epoch(1)), ["id"]).rows == 3


def test_work_that_cannot_be_made_ends_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one for which this machine has no room: it says so."""
    made: Any = partial(int, "odd")
    child = Child(made)
    with pytest.raises(Unavailable, match=r"ended amid its work \(exit code 1\)"):
        child.ask()

    def no_room() -> subprocess.Popen[bytes]:
        raise OSError("no memory")

    monkeypatch.setattr(child_processes, "start_child", no_room)
    with pytest.raises(Unavailable, match="no memory"):
        child.ask()
    child.close()


class Foreign(Exception):
    """Is written down, and cannot be made again of its text, as some errors of libraries."""

    def __init__(self, text: str, *, request: object) -> None:
        super().__init__(text)
        self.request = request


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (LeaseLost("another writer committed"), LeaseLost),
        (KeyError("odd"), KeyError),
        (Foreign("the pool is empty", request=None), Unavailable),
    ],
)
def test_errors_pass_the_border(error: Exception, kind: type[Exception]) -> None:
    def failing() -> None:
        raise error

    done, told = pickle.loads(answered(failing, ()))
    assert (done, type(told)) == (False, kind)
    assert str(error.args[0]) in str(told)


def folding_beside(lake: Lake) -> CurrentTables:
    """Make tables that always have a tail, folded by a child at once."""
    policy = FoldPolicy(direct_bytes=-1, freshness_s=0.01)
    return CurrentTables(lake, Tables(), registry(), policy=policy, beside=MergeBeside())


def one_is_killed() -> bool:
    """Kill a folding process that is there; say whether one was: it may end by itself meanwhile."""
    found = children()
    for each in found[:1]:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    return bool(found)


def test_p4_a_child_that_dies_while_the_tail_is_folded_costs_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "_PAUSES_S", (0.01,))
    current = folding_beside(lake)
    path = lake.path(current_name(SOURCE, TABLE))
    wanted = apply({}, [Done("c", 0, "a", "zero", 0)])
    current.fold(SOURCE, TABLE, changes([Done("c", 0, "a", "zero", 0)], first=1), Epoch(1))
    try:
        for number in range(1, 9):
            done = [Done("c", number, "a", "new", number), Done("u", 0, "a", None, number)]
            wanted = apply(wanted, done)
            current.fold(SOURCE, TABLE, changes(done, first=number * 10), Epoch(number + 1))
            if number % 2:
                until(one_is_killed, "the folding process is there")
        until(lambda: state_of(Tables().read(path)) == wanted, "the tail is folded")
    finally:
        current.close()
    assert not children()


PARENT = """
import os, sys, time
import pyarrow as pa
from kernel.positions import Epoch
from lake.writer import Guard
from pipeline.current.merging import MergeBeside
rows = pa.table({"id": [1], "__op": ["upsert"]})
merge = MergeBeside()
merge(sys.argv[1], rows, Guard("base", Epoch(1)), ["id"])
print(merge._child.process.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_with_the_process_that_it_works_for(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "a")], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    with parent.stdout as told:
        child = psutil.Process(int(told.readline()))
        parent.kill()
        parent.wait()
    until(lambda: ended(child), "the child has ended")


def ended(child: psutil.Process) -> bool:
    """Say whether a process is over; one that nobody has reaped yet is."""
    try:
        return child.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


HELD = """
import sys, time
from pathlib import Path
from lake import child_processes
from lake.writer import ArrowWriter
def held(*_):
    Path(sys.argv[1]).touch()
    time.sleep(600)
ArrowWriter.replace = held
child_processes.main()
"""


def test_it_ends_amid_a_merge_when_its_input_does(tmp_path: Path) -> None:
    """Somebody else may write the base from then on."""
    path, merged = str(tmp_path / "a"), tmp_path / "merged"
    write_deltalake(path, pa.table({"id": [1, 2], "name": ["one", "two"]}))
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(merged)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            ask(child.stdin, path, 1, images((1, "eins", "upsert")))
            until(merged.exists, "it has merged and not yet written")
            child.stdin.close()
            assert child.wait(30) == 0
            assert child.stdout.read() == b""
        finally:
            child.kill()
    assert DeltaTable(path).version() == 0


def ask(told: IO[bytes], path: str, epoch: int, rows: pa.Table) -> None:
    for what in (merging._merging, (path, packed(rows), Guard("base", Epoch(epoch)), ["id"])):
        pickle.dump(what, told, pickle.HIGHEST_PROTOCOL)
    told.flush()


def test_p4_who_needs_a_base_does_not_wait_for_a_process_that_stands_still(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tail_module, "_PATIENCE_S", 0.3)
    current = folding_beside(lake)
    wanted: State = {}
    try:
        for number in range(1, 4):
            done = [Done("c", number, "a", "new", number)]
            wanted = apply(wanted, done)
            current.fold(SOURCE, TABLE, changes(done, first=number), Epoch(number))
            if number == 2:
                until(children, "the folding process is there")
                children()[0].suspend()
        current.settle(SOURCE, TABLE)
        assert state_of(Tables().read(lake.path(current_name(SOURCE, TABLE)))) == wanted
        # So does the end of the pipeline.
        done = [Done("c", 9, "a", "new", 9)]
        current.fold(SOURCE, TABLE, changes(done, first=9), Epoch(9))
        for child in children():
            child.suspend()
    finally:
        current.close()
    assert not children()


def test_tables_that_are_folded_side_by_side_begin_one_thread(lake: Lake) -> None:
    tails = TailTables(lake, Tables(), FoldPolicy())
    before, begin = set(threading.enumerate()), threading.Barrier(8)

    def start(_: int) -> None:
        begin.wait()
        tails._start()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(start, range(8)))
    try:
        started = set(threading.enumerate()) - before
        assert [thread.name for thread in started] == ["fold"]
    finally:
        tails.close()
