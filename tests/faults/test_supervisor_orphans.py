"""However the supervisor, a shim or a part dies: no process is left over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from kernel.errors import EXIT_CONFLICT, Conflict, Unavailable, exit_code
from stack import control
from stack.plan import Part, StackPlan
from stack.planning import UpOptions
from stack.status import status as status_of
from tests.faults.dummy import Bench, alive, bench
from tests.support.services.waiting import until

FOREGROUND = """
import sys
from pathlib import Path
from stack import control
from stack.plan import StackPlan
from stack.planning import UpOptions
root, plan = Path(sys.argv[1]), StackPlan.from_json(Path(sys.argv[2]).read_text())
control.up_foreground(root, UpOptions(parts=(), extra=lambda ports, env: list(plan.parts)))
"""


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path / "work space") as made:
        yield made


def supervisor_pid(stack: Bench) -> int:
    pid = stack.workspace.supervisor_pid()
    assert pid is not None
    return pid


def shim_pid(stack: Bench, name: str) -> int:
    return int(json.loads((stack.workspace.run / f"{name}.pid").read_text())["shim"])


def test_a_killed_supervisor_takes_everything_with_it(stack: Bench) -> None:
    """Parts that end when asked, parts deaf to it, and grandchildren in sessions of their own."""
    stack.up(
        stack.part("base", offspring=2),
        stack.part("deaf", "base", stubborn=True, offspring=1, grace_s=0.3),
    )
    assert len(stack.living()) == 5
    shims = [shim_pid(stack, name) for name in ("base", "deaf")]
    os.kill(supervisor_pid(stack), signal.SIGKILL)
    until(lambda: not stack.living(), "all parts and their children are gone")
    until(lambda: not any(map(alive, shims)), "the shims are gone")
    assert ("ended", "base") in stack.events(), "asked first, not killed at once"


def test_after_a_killed_supervisor_the_next_up_waits_for_the_old_parts(stack: Bench) -> None:
    part = stack.part("slow", ends_after_s=0.7)
    stack.up(part)
    (old,) = stack.living()
    os.kill(supervisor_pid(stack), signal.SIGKILL)
    until(lambda: stack.workspace.supervisor_pid() is None, "the supervisor is gone")
    said: list[str] = []
    control.up(stack.root, UpOptions(parts=(), extra=lambda ports, env: [part]), said.append)
    assert not alive(old)
    assert stack.events() == [
        ("started", "slow"),
        ("serving", "slow"),
        ("ended", "slow"),
        ("started", "slow"),
        ("serving", "slow"),
    ]
    assert "slow: waiting for an earlier process to end" in said


def test_a_stack_that_nobody_stopped_is_told_from_one_that_was(stack: Bench) -> None:
    stack.up(stack.part("part"))
    assert not status_of(stack.root)["killed"]
    os.kill(supervisor_pid(stack), signal.SIGKILL)
    until(lambda: stack.workspace.supervisor_pid() is None, "the supervisor is gone")
    found = status_of(stack.root)
    assert (found["state"], found["killed"]) == ("stopped", True)
    control.up(stack.root, UpOptions(parts=(), extra=lambda ports, env: [stack.part("part")]))
    control.down(stack.root)
    assert not status_of(stack.root)["killed"]


def test_a_down_beside_an_up_that_waits_is_the_end_of_both(stack: Bench, tmp_path: Path) -> None:
    part = stack.part("slow", gate=tmp_path / "never")
    options = UpOptions(parts=(), extra=lambda ports, env: [part])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(control.up, stack.root, options)
        until(lambda: bool(stack.living()), "its process is there")
        assert control.down(stack.root)
        with pytest.raises(Unavailable, match="another command stopped the stack"):
            waiting.result(timeout=20)
    assert not stack.living()
    assert stack.workspace.supervisor_pid() is None


def test_a_down_beside_an_up_that_prepares_does_not_say_that_nothing_will_run(
    stack: Bench,
) -> None:
    part, said = stack.part("part"), list[str]()
    options = UpOptions(parts=(), extra=lambda ports, env: [part])
    with ThreadPoolExecutor(1) as pool:
        with stack.workspace.one_at_a_time():
            for stop in (control.down, control.reset):
                with pytest.raises(Conflict, match="another command is about to start the stack"):
                    stop(stack.root)
            second = pool.submit(control.up, stack.root, options, said.append)
            until(lambda: bool(said), "a second one says that it waits")
        second.result(timeout=20)
    assert said[0] == "waiting for another command that changes this stack"
    assert control.down(stack.root)
    assert not control.down(stack.root)


def test_a_stack_within_what_a_reset_would_remove_is_stopped_first(tmp_path: Path) -> None:
    """A demo that was kept lies in the folder of the workspace around it."""
    with bench(tmp_path / ".penstock" / "demo") as inner:
        inner.up(inner.part("part"))
        with pytest.raises(Conflict, match="which would be removed as well") as refused:
            control.reset(tmp_path)
        assert f"penstock down -w {inner.root}" in str(refused.value.remedy)
        assert inner.living()
        control.down(inner.root)
        assert control.reset(tmp_path) == [tmp_path / ".penstock"]


def test_an_up_that_meets_a_dying_supervisor_starts_anew(stack: Bench) -> None:
    part = stack.part("part")
    options = UpOptions(parts=(), extra=lambda ports, env: [part])
    for _ in range(5):
        control.up(stack.root, options)
        os.kill(supervisor_pid(stack), signal.SIGKILL)
    control.up(stack.root, options)
    assert len(stack.living()) == 1


def test_a_killed_shim_takes_its_part_with_it_and_the_part_comes_back(stack: Bench) -> None:
    stack.up(stack.part("part"))
    (old,) = stack.living()
    os.kill(shim_pid(stack, "part"), signal.SIGKILL)
    until(lambda: stack.states()["part"]["restarts"] == 1, "the death is noticed")
    until(lambda: stack.states()["part"]["state"] == "ready", "the part is back")
    assert not alive(old)
    assert len(stack.living()) == 1


def test_a_dead_part_leaves_no_children(stack: Bench) -> None:
    stack.up(stack.part("part", offspring=2))
    offspring = stack.pids("offspring")
    control.kill_part(stack.root, "part")
    until(lambda: stack.states()["part"]["restarts"] == 1, "the death is noticed")
    until(lambda: not any(map(alive, offspring)), "its children are gone")


SERVED_TO_THE_LAST = """
import os, signal, subprocess, sys, time
def end(*_):
    time.sleep(0.2)
    open("seen", "w").write(str(child.poll()))
    os._exit(0)
signal.signal(signal.SIGTERM, end)
helper = "trap 'exit 9' TERM; touch ready; while :; do sleep 0.02; done"
child = subprocess.Popen(["sh", "-c", helper])
while True:
    time.sleep(0.02)
"""


def test_a_parts_own_helpers_live_until_it_has_ended(stack: Bench) -> None:
    stack.up(Part(name="boss", argv=(sys.executable, "-S", "-c", SERVED_TO_THE_LAST)))
    until((stack.root / "ready").exists, "the helper runs")
    control.down(stack.root)
    assert (stack.root / "seen").read_text() == "None", "the helper was still there"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_stops_in_order(stack: Bench, number: int) -> None:
    stack.up(stack.part("base"), stack.part("top", "base", offspring=1))
    os.kill(supervisor_pid(stack), number)
    until(lambda: not stack.living(), "all are gone")
    assert [name for event, name in stack.events() if event == "ended"] == ["top", "base"]


@contextmanager
def foreground(stack: Bench) -> Iterator[subprocess.Popen[bytes]]:
    plan_file = stack.root / "given.json"
    script = [sys.executable, "-P", "-c", FOREGROUND, str(stack.root), str(plan_file)]
    with subprocess.Popen(script, start_new_session=True, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_ctrl_c_in_the_foreground_stops_in_order(stack: Bench) -> None:
    give(stack)
    with foreground(stack) as process:
        until(lambda: stack.states().get("top", {}).get("state") == "ready", "all is ready")
        # A terminal signals the whole foreground group; the parts must not be in it.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
    assert not stack.living()
    assert [name for event, name in stack.events() if event == "ended"] == ["top", "base"]


def test_kill_9_in_the_foreground_leaves_nothing(stack: Bench) -> None:
    give(stack)
    with foreground(stack) as process:
        until(lambda: stack.states().get("top", {}).get("state") == "ready", "all is ready")
        process.kill()
        until(lambda: not stack.living(), "all are gone")


def test_the_foreground_does_not_clash_with_a_running_stack(stack: Bench) -> None:
    stack.up(stack.part("part"))
    with pytest.raises(Conflict, match="runs already") as caught:
        control.up_foreground(stack.root, UpOptions(parts=()))
    assert exit_code(caught.value) == EXIT_CONFLICT
    assert stack.states()["part"]["state"] == "ready"


def test_ctrl_c_while_waiting_stops_what_was_started(
    stack: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = stack.part("slow", gate=tmp_path / "never")

    def interrupt(line: str) -> None:
        if line == "slow: starting":
            until(lambda: bool(stack.living()), "its process is there")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        control.up(stack.root, UpOptions(parts=(), extra=lambda ports, env: [part]), interrupt)
    assert not stack.living()
    assert stack.workspace.supervisor_pid() is None


def test_the_supervisor_itself_leaves_no_zombie(stack: Bench) -> None:
    stack.up(stack.part("part"))
    pid = supervisor_pid(stack)
    assert pid not in [child.pid for child in psutil.Process().children(recursive=True)]
    control.down(stack.root)
    until(lambda: not alive(pid), "the supervisor has ended")


def give(stack: Bench) -> None:
    """Write the parts of a foreground run to a file."""
    plan = StackPlan(parts=(stack.part("base"), stack.part("top", "base", offspring=1)))
    (stack.root / "given.json").write_text(plan.to_json())
