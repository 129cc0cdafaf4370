"""A rebuild or import whose process is killed leaves a store that serves nobody; both go on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from eventstore.recovery.dump import export
from eventstore.recovery.events import FolderEvents, LakeEvents
from eventstore.recovery.rebuild import rebuild
from kernel.errors import Unavailable
from lake.layout import Lake
from schemas.registry import MemoryRegistry
from tests.integration.test_store_rebuild import compared, head, lived, serves_nobody
from tests.migration.test_event_store_schema import dumped
from tests.support.services.http import service_in_thread
from tests.support.services.waiting import until
from tests.support.store.postgres import EMPTY

PENSTOCK = "from apps.cli import main; main()"
IN_PARTS = """
import asyncio, sys
from eventstore.recovery.events import LakeEvents
from eventstore.recovery.rebuild import rebuild
from lake.layout import Lake
def show(progress):
    print(progress.events, flush=True)
    sys.stdin.readline()
asyncio.run(rebuild(LakeEvents(Lake.at(sys.argv[1]), part=7), sys.argv[2], show=show, copies=1))
"""
"""Copies seven events at a time, and waits after each part."""
BEHIND_EVERY_PART = """
import asyncio, os, signal, sys
from pathlib import Path
from eventstore.recovery.events import FolderEvents
from eventstore.recovery.rebuild import rebuild
def die(progress):
    os.kill(os.getpid(), signal.SIGKILL)
ended = -signal.SIGKILL
while ended == -signal.SIGKILL:
    child = os.fork()
    if not child:
        asyncio.run(rebuild(FolderEvents(Path(sys.argv[1])), sys.argv[2], show=die, copies=1))
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(ended, flush=True)
sys.exit(ended)
"""
"""Imports in processes, each killed behind its first part, until one has nothing left to copy."""


@pytest.fixture
def lake(postgres_dsn: str, tmp_path: Path) -> Path:
    lived(postgres_dsn, tmp_path / "lake", MemoryRegistry())
    return tmp_path / "lake"


@contextmanager
def running(*command: str, lake: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-c", *command],
        env=os.environ | {"PENSTOCK_LAKE_PATH": str(lake)},
        cwd=lake.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def rebuilding(dsn: str) -> tuple[str, ...]:
    return (PENSTOCK, "store", "rebuild", "--into", dsn)


@contextmanager
def blocked(dsn: str, mode: str) -> Iterator[Callable[[], bool]]:
    """Hold a lock on the events; yield who tells whether somebody waits for it."""
    with psycopg.connect(dsn) as holder, psycopg.connect(dsn, autocommit=True) as looking:
        holder.execute(f"LOCK TABLE es.events IN {mode} MODE".encode())

        def waits() -> bool:
            found = looking.execute(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation ="
                " 'es.events'::regclass"
            ).fetchone()
            return found == (1,)

        yield waits


def closed(dsn: str, lake: Path) -> None:
    """See that neither a service nor a command reads the half filled store."""
    with service_in_thread(dsn, wait_ready=False) as http:
        serves_nobody(http)
    with pytest.raises(Unavailable, match="is being filled"):
        compared(LakeEvents(Lake.at(lake)), dsn, lake)


def killed(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=60) == -signal.SIGKILL


def begun(dsn: str, lake: Path) -> None:
    """Copy two parts and be killed."""
    with running(IN_PARTS, str(lake), dsn, lake=lake) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"7\n"
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"14\n"
        killed(process)
    assert head(dsn) == 14


def test_p1_an_import_killed_behind_every_part_is_the_store_that_was_exported(
    postgres_dsn: str, lake: Path, new_database: Callable[..., str]
) -> None:
    folder, empty, whole = lake.parent / "export", new_database(EMPTY), head(postgres_dsn)
    asyncio.run(export(postgres_dsn, str(lake), folder, part=9, file_events=27))
    with running(BEHIND_EVERY_PART, str(folder), empty, lake=lake) as process:
        told, _ = process.communicate(timeout=300)
    assert [*map(int, told.split())] == [-signal.SIGKILL] * -(-whole // 9) + [0]
    assert head(empty) == whole
    for origin in (FolderEvents(folder), LakeEvents(Lake.at(lake))):
        assert compared(origin, empty, lake).equal
    assert dumped(empty) == dumped(new_database()), "with every index, constraint and right"


@pytest.mark.matrix
def test_p1_a_rebuild_killed_amid_its_copy_and_its_indexes_serves_nobody_and_goes_on(
    postgres_dsn: str, lake: Path, new_database: Callable[..., str]
) -> None:
    empty, whole = new_database(EMPTY), head(postgres_dsn)
    begun(empty, lake)
    closed(empty, lake)
    # The lock that a copy takes waits for the first mode, and that of an index for the second.
    for mode, copied in (("SHARE ROW EXCLUSIVE", 14), ("ROW EXCLUSIVE", whole)):
        with blocked(empty, mode) as waits, running(*rebuilding(empty), lake=lake) as process:
            until(waits, f"somebody waits for {mode}", deadline_s=60)
            killed(process)
        assert head(empty) == copied
        with pytest.raises(Unavailable, match="is being filled"):
            compared(LakeEvents(Lake.at(lake)), empty, lake)
    closed(empty, lake)
    with running(*rebuilding(empty), lake=lake) as again:
        assert again.wait(timeout=120) == 0
    assert compared(LakeEvents(Lake.at(lake)), empty, lake).equal
    assert dumped(empty) == dumped(new_database()), "with every index, constraint and right"


@pytest.mark.matrix
def test_two_that_rebuild_at_once_do_not_meet(lake: Path, new_database: Callable[..., str]) -> None:
    empty, events = new_database(EMPTY), LakeEvents(Lake.at(lake))
    with running(IN_PARTS, str(lake), empty, lake=lake) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"7\n"
        with pytest.raises(Unavailable, match="another process fills"):
            asyncio.run(rebuild(events, empty))
        killed(process)
    asyncio.run(rebuild(events, empty))
    assert compared(events, empty, lake).equal
