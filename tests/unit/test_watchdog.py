"""Loops that stand still although they should move: seen, said at every door, and ended at last."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernel import failpoints
from kernel.loops import Loop, Signs, passed
from pipeline.process.health import PartState
from pipeline.process.watchdog import EXIT_STANDSTILL, Ends, Watchdog, Watched
from service.standstills import of_pipeline
from tests.support.services.waiting import until

HELD = failpoints.EPOCH_AFTER_FOLD


@dataclass
class World:
    """A clock, a loop, and its watchdog."""

    at: float = 100.0
    signs: Signs = field(default_factory=Signs)
    ended: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loop = Loop("ingest", now=lambda: self.at)
        self.other = Loop("copies", now=lambda: self.at)
        self.watchdog = Watchdog(
            [
                Watched(loop=self.loop, bound_s=60, vital=True, probe=lambda: self.signs),
                Watched(loop=self.other, bound_s=60),
            ],
            end_after_s=900,
            end=self.ended.append,
            now=lambda: self.at,
        )

    def after(self, seconds: float) -> dict[str, str]:
        """Let time pass and look, as often as a watchdog does."""
        for part in (*(4.0,) * int(seconds // 4), seconds % 4):
            self.at += part
            self.watchdog.look()
        return self.watchdog.still


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def held() -> Iterator[str]:
    """A failpoint at which whoever comes by is held until the end of the test."""
    failpoints.arm(HELD, "hold")
    yield HELD
    failpoints.disarm()


def test_whoever_rests_stands_where_it_should(world: World) -> None:
    with world.loop.working("an epoch"):
        pass
    assert not world.after(10_000)
    assert not world.ended


def test_work_that_does_not_get_on_is_named_with_its_step_and_the_next_command(
    world: World,
) -> None:
    with world.loop.working("an epoch"):
        assert not world.after(59)
        passed("epoch.after_bind")
        assert not world.after(59)
        said = world.after(2)["ingest"]
        assert said.startswith("ingest has not moved on for 61 s, since epoch.after_bind | fix: ")
        passed("epoch.after_log")
        assert not world.after(1)


def test_a_thread_that_is_held_at_a_failpoint_stands_still_there(world: World, held: str) -> None:
    def epoch() -> None:
        with world.loop.working("an epoch"):
            failpoints.hit(held)

    thread = threading.Thread(target=epoch, daemon=True)
    thread.start()
    until(lambda: f"since {held}" in world.after(61).get("ingest", ""), "it is seen", deadline_s=20)
    failpoints.disarm()
    thread.join(20)
    assert not world.after(61)


def test_work_that_other_threads_do_for_a_loop_moves_it_on(world: World) -> None:
    with world.loop.working("an epoch"), ThreadPoolExecutor(1) as pool:
        world.at += 50
        pool.submit(copy_context().run, passed, "a table").result()
        assert not world.after(50)
        pool.submit(passed, "something else").result()
        assert "since a table" in world.after(50)["ingest"]


def test_what_waits_while_nothing_is_done_counts_from_when_it_was_seen(world: World) -> None:
    assert not world.after(10_000)
    world.signs = Signs(waits="12 records wait in Kafka")
    world.watchdog.probe()
    assert not world.after(59)
    world.watchdog.probe()
    assert "while 12 records wait in Kafka" in world.after(2)["ingest"]
    world.signs = Signs()
    world.watchdog.probe()
    assert not world.after(10_000)


def test_progress_that_is_seen_from_outside_is_progress(world: World) -> None:
    with world.loop.working("a step on executors"):
        for tasks in range(5):
            world.signs = Signs(progress=tasks)
            world.watchdog.probe()
            assert not world.after(50)
        world.watchdog.probe()
        assert world.after(50)


def test_a_probe_that_fails_is_no_progress(world: World) -> None:
    def nobody_answers() -> Signs:
        raise RuntimeError("nobody answers")

    watched = [Watched(loop=world.loop, bound_s=60, probe=nobody_answers)]
    world.watchdog = Watchdog(watched, end_after_s=0, now=lambda: world.at)
    with world.loop.working("an epoch"):
        world.watchdog.probe()
        assert world.after(10_000)


def test_the_process_ends_for_a_vital_loop_alone(world: World) -> None:
    with world.other.working("a copy"):
        assert world.after(10_000).keys() == {"copies"}
        assert not world.ended
        with world.loop.working("an epoch"):
            world.after(899)
            assert not world.ended
            world.after(2)
            assert len(world.ended) == 1


def test_time_in_which_the_whole_process_was_stopped_does_not_count(world: World) -> None:
    with world.loop.working("an epoch"):
        assert not world.after(50)
        world.at += 10_000
        world.watchdog.look()
        assert not world.watchdog.still
        assert world.after(12), "what stood still before and after it is counted together"
    assert not world.ended


def test_a_step_that_ended_the_process_gets_twice_the_time_when_it_is_begun_again(
    world: World, tmp_path: Path
) -> None:
    def started_again() -> None:
        world.ended.clear()
        watched = [Watched(loop=world.loop, bound_s=60, vital=True)]
        ends = Ends(tmp_path / "standstills.json", now=lambda: world.at)
        world.watchdog = Watchdog(
            watched, end_after_s=900, end=world.ended.append, ends=ends, now=lambda: world.at
        )

    for before in range(3):
        started_again()
        with world.loop.working("a merge"):
            world.after(900 * 2**before - 4)
            assert not world.ended
            world.after(5)
            assert world.ended
    assert "ended 2 times before at this step" in world.ended[0]
    started_again()
    with world.loop.working("another step"):
        world.after(901)
        assert world.ended
    world.at += 90_000
    started_again()
    with world.loop.working("another step"):
        world.after(901)
        assert world.ended, "ends of long ago do not count"


def test_counts_that_cannot_be_read_or_written_do_not_keep_the_process(tmp_path: Path) -> None:
    (tmp_path / "standstills.json").write_text("{")
    assert Ends(tmp_path / "standstills.json").before("ingest", "a merge") == 0
    Ends(tmp_path / "nowhere" / "standstills.json").add("ingest", "a merge")


def test_a_part_that_stands_still_is_told_with_its_command(world: World) -> None:
    with world.loop.working("an epoch"), world.other.working("a copy"):
        still = dict(world.after(100))
    state = {"ingest": PartState("running").shown(still, "ingest"), "loops": still}
    ingest, copies = of_pipeline(state)
    assert (ingest.component, ingest.command) == ("ingest", "penstock restart pipeline")
    assert ingest.lasting, "whoever waits is told at once"
    assert (copies.component, copies.name) == ("loop", "copies")
    assert copies.cause == "copies has not moved on for 100 s, since a copy"


def test_a_process_is_ended_with_its_stacks_although_a_loop_holds_the_lock_of_the_log() -> None:
    program = f"""
import logging
import threading
from pipeline.process.watchdog import Watchdog, Watched
from kernel import failpoints
from kernel.loops import Signs, Loop
loop = Loop("ingest")
failpoints.arm({HELD!r}, "hold")

logging.basicConfig()

def epoch_of_this_test():
    with logging.getLogger().handlers[0].lock, loop.working("an epoch"):
        failpoints.hit({HELD!r})

threading.Thread(target=epoch_of_this_test, daemon=True).start()
watched = [Watched(loop=loop, bound_s=0.01, vital=True)]
Watchdog(watched, end_after_s=0.02).run(threading.Event())
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == EXIT_STANDSTILL
    assert "in epoch_of_this_test" in ran.stderr
    assert f"since {HELD}" in ran.stderr
