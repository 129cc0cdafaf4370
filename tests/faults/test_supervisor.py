"""The supervisor on small parts: order, restarts, giving up, attaching, stopping."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from apps.accounts import of_parts
from apps.cli.stack import why
from kernel.errors import InvalidRequest, NotFound, Unavailable
from stack import control, logs
from stack.plan import Part, Probe, StackPlan, Step
from stack.planning import UpOptions
from stack.running_part import Running
from stack.status import parts
from stack.status import status as status_of
from stack.supervisor import Supervisor
from tests.faults.dummy import QUICK, Bench, bench
from tests.support.services.waiting import until


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Bench]:
    # A space, a quote and a length beyond what a socket path may have: folders look like this.
    with bench(tmp_path / ("a clone's long path " * 8).strip()) as made:
        yield made


def test_a_part_starts_when_those_that_it_needs_are_ready(stack: Bench) -> None:
    stack.up(stack.part("top", "middle"), stack.part("bottom"), stack.part("middle", "bottom"))
    assert stack.events() == [
        ("started", "bottom"),
        ("serving", "bottom"),
        ("started", "middle"),
        ("serving", "middle"),
        ("started", "top"),
        ("serving", "top"),
    ]


def test_independent_parts_do_not_wait_for_each_other(stack: Bench, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    plan = stack.launch(stack.part("slow", gate=gate), stack.part("quick"))
    until(lambda: stack.states().get("quick", {}).get("state") == "ready", "quick is ready")
    assert stack.states()["slow"]["state"] == "starting"
    gate.touch()
    control.wait_ready(stack.workspace, plan, timeout_s=20)


def test_a_part_that_waits_says_for_what(stack: Bench, tmp_path: Path) -> None:
    stack.launch(stack.part("base", gate=tmp_path / "gate"), stack.part("top", "base"))
    until(
        lambda: stack.states().get("top", {}).get("reason") == "waits for base, which is starting",
        "top says what it waits for",
    )


def test_parts_stop_in_the_reverse_order(stack: Bench) -> None:
    stack.up(stack.part("base"), stack.part("left", "base"), stack.part("right", "base"))
    assert control.down(stack.root)
    ended = [name for event, name in stack.events() if event == "ended"]
    assert sorted(ended[:2]) == ["left", "right"]
    assert ended[2:] == ["base"]
    assert not stack.living()
    assert status_of(stack.root)["state"] == "stopped"
    assert not control.down(stack.root)


def test_p11_a_killed_part_comes_back(stack: Bench) -> None:
    stack.up(stack.part("part"))
    before = control.kill_part(stack.root, "part", signal.SIGKILL)
    until(lambda: stack.states()["part"]["restarts"] == 1, "the death is noticed")
    until(lambda: stack.states()["part"]["state"] == "ready", "the part is back")
    assert stack.states()["part"]["pid"] != before
    assert stack.living() == {stack.states()["part"]["pid"]}


def test_a_part_without_a_process_is_not_called_ready(stack: Bench) -> None:
    stack.up(stack.part("part"))
    # The supervisor takes this file away first, and says a moment later that the part died.
    (stack.workspace.run / "part.pid").unlink()
    (found,) = parts(stack.root)
    assert (found["state"], found["pid"]) == ("unready", None)


def test_one_part_is_started_again_in_order(stack: Bench) -> None:
    stack.up(stack.part("base"), stack.part("top", "base"))
    before = {name: state["pid"] for name, state in stack.states().items()}
    for restarted in (1, 2):
        told = control.restart(stack.root, "base", timeout_s=20)
        assert (told["state"], told["restarts"]) == ("ready", 0)
        assert stack.events()[4:].count(("ended", "base")) == restarted
        assert stack.events()[-2:] == [("started", "base"), ("serving", "base")]
    states = stack.states()
    assert told["pid"] == states["base"]["pid"] != before["base"]
    assert states["top"]["pid"] == before["top"], "others are left alone"
    assert stack.living() == {states["base"]["pid"], states["top"]["pid"]}
    stack.up(stack.part("base"), stack.part("top", "base"))
    assert stack.states()["base"]["pid"] == told["pid"]
    with pytest.raises(NotFound, match="no part called 'ghost'; there are: base, top"):
        control.restart(stack.root, "ghost")
    control.down(stack.root)
    with pytest.raises(Unavailable, match="no stack runs here"):
        control.restart(stack.root, "base")


def test_what_waits_for_a_failed_part_starts_once_it_is_mended(
    stack: Bench, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    base, top = stack.part("base", dies=mended), stack.part("top", "base")
    with pytest.raises(Unavailable, match="base failed"):
        stack.up(base, top)
    until(
        lambda: stack.states()["top"]["reason"] == "waits for base, which is failed",
        "top waits for what failed",
    )
    mended.touch()
    told = control.restart(stack.root, "base", timeout_s=20)
    assert told["state"] == "ready"
    until(lambda: stack.states()["top"]["state"] == "ready", "top follows")


def test_a_part_that_was_started_again_says_how_it_ended(stack: Bench) -> None:
    stack.up(stack.part("part"))
    control.kill_part(stack.root, "part", signal.SIGKILL)
    until(partial(_came_back, stack, "part", 1), "the part is back")
    state = stack.states()["part"]
    assert (state["reason"], str(state["ended"])[:14]) == (None, "signal SIGKILL")
    line = f"ended at {state['ended_at']}: signal SIGKILL"
    assert why(state) == line
    assert why({**state, "state": "starting", "reason": "no answer"}) == f"no answer; {line}"
    assert why({**state, "state": "stopped"}) is None


def test_killing_what_does_not_run_is_refused(stack: Bench) -> None:
    with pytest.raises(NotFound, match="no part called ghost"):
        control.kill_part(stack.root, "ghost")


def test_p11_a_part_that_dies_again_and_again_stands_still_with_its_last_words(
    stack: Bench, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    part = stack.part("poor", says="no such disk", dies=mended)
    with pytest.raises(
        Unavailable, match=r"poor failed: exit status 7; last lines: .*no such disk"
    ):
        stack.up(part, stack.part("fine"))
    state = stack.states()["poor"]
    assert state["restarts"] == QUICK.cap
    assert state["pid"] is None
    assert stack.events().count(("started", "poor")) == QUICK.cap + 1
    until(lambda: stack.states()["fine"]["state"] == "ready", "others are left alone")

    mended.touch()
    stack.up(part)
    assert stack.states()["poor"]["state"] == "ready"


def test_a_program_that_is_not_there_is_named(stack: Bench) -> None:
    part = Part(name="absent", argv=("/nowhere/program",), probe=Probe(kind="port", port=1))
    with pytest.raises(Unavailable, match="cannot start /nowhere/program"):
        stack.up(part)


def test_a_part_that_never_answers_is_given_up(stack: Bench, tmp_path: Path) -> None:
    part = stack.part("mute", gate=tmp_path / "never", start_timeout_s=0.2)
    with pytest.raises(
        Unavailable, match=r"mute failed: not ready within 0.2 s: port \d+: .*failed"
    ):
        stack.up(part)
    assert not stack.living()


@pytest.mark.matrix
def test_a_part_that_hangs_is_shown_until_it_answers_again(stack: Bench) -> None:
    stack.up(stack.part("frozen"))
    pid = control.kill_part(stack.root, "frozen", signal.SIGSTOP)
    until(lambda: stack.states()["frozen"]["state"] == "unready", "it hangs")
    assert "no answer on port" in str(stack.states()["frozen"]["reason"])
    os.kill(pid, signal.SIGCONT)
    until(lambda: stack.states()["frozen"]["state"] == "ready", "it answers again")
    assert stack.states()["frozen"]["restarts"] == 0


def _came_back(stack: Bench, name: str, restarts: int) -> bool:
    state = stack.states()[name]
    return (state["state"], state["restarts"]) == ("ready", restarts)


@pytest.mark.matrix
def test_p11_a_part_that_must_not_hang_is_started_again(stack: Bench) -> None:
    stack.up(stack.part("stuck", hung_after_s=0.1, grace_s=0.2), stack.part("frozen"))
    frozen = control.kill_part(stack.root, "frozen", signal.SIGSTOP)
    before = control.kill_part(stack.root, "stuck", signal.SIGSTOP)
    until(lambda: stack.states()["stuck"]["restarts"] == 1, "the hang is noticed")
    until(lambda: stack.states()["stuck"]["state"] == "ready", "the part is back")
    assert stack.states()["stuck"]["pid"] != before
    assert stack.living() == {stack.states()["stuck"]["pid"], frozen}
    assert stack.states()["frozen"]["restarts"] == 0, "one that may hang is only shown"


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "refusing"])
def test_p11_a_part_that_says_nothing_for_long_is_started_again(stack: Bench, silent: bool) -> None:
    """One that answers, whatever it answers, knows what is wrong itself."""
    gate = stack.root / "gate"
    gate.touch()
    stack.up(stack.part("part", gate=gate, silent_after_s=0.5, grace_s=0.2))
    before = stack.states()["part"]["pid"]
    if silent:
        control.kill_part(stack.root, "part", signal.SIGSTOP)
        until(partial(_came_back, stack, "part", 1), "it is started again")
        assert stack.states()["part"]["pid"] != before
        return
    gate.unlink()
    until(lambda: len([e for e, _ in stack.events() if e == "refused"]) > 20, "it refuses for long")
    assert stack.states()["part"]["state"] == "unready"
    assert (stack.states()["part"]["pid"], stack.states()["part"]["restarts"]) == (before, 0)


def test_parts_that_are_late_are_told_with_cause_log_and_command(
    stack: Bench, tmp_path: Path
) -> None:
    """Each way to be late: it does not answer, it dies again and again, it waits for another."""
    gate, never = tmp_path / "gate", tmp_path / "never"
    parts_of_all_kinds = (
        stack.part("fine"),
        stack.part("top", "mute"),
        stack.part("mute", says="reading the past", gate=gate),
        stack.part("slow", says="again", gate=never, start_timeout_s=0.3, grace_s=0.1),
    )
    patient = replace(QUICK, cap=1_000, base_s=0.01)
    plan = StackPlan(parts=parts_of_all_kinds, restarts=patient, health_pause_s=0.05)
    control.launch(stack.workspace, plan)
    until(lambda: stack.states().get("slow", {}).get("restarts", 0) != 0, "it was given up once")
    until(lambda: stack.states()["fine"]["state"] == "ready", "another one is ready")
    with pytest.raises(Unavailable) as refused:
        control.wait_ready(stack.workspace, plan, timeout_s=0)
    said = refused.value
    assert re.search(r"mute is starting: port \d+: .*failed", said.message)
    assert "last lines of its log: reading the past" in said.message
    assert "not ready within 0.3 s" in said.message, "why it ended before"
    assert said.message.endswith("top is waiting: waits for mute, which is starting")
    assert "fine" not in said.message
    assert said.fields["part"] in ("mute", "slow")
    assert str(stack.workspace.log_of(str(said.fields["part"]))) in said.remedy
    assert f"penstock logs {said.fields['part']}" in said.remedy
    gate.touch()
    until(lambda: stack.states()["top"]["state"] == "ready", "it goes on meanwhile")
    assert stack.states()["mute"]["reason"] is None


@pytest.mark.parametrize("frozen", [True, False], ids=["hangs", "dies"])
def test_a_part_that_stands_still_is_told_with_the_next_command(stack: Bench, frozen: bool) -> None:
    part = stack.part("part", dies=None if frozen else stack.root / "never")
    stack.up(stack.part("fine"), *([part] if frozen else []))
    assert of_parts(status_of(stack.root)) == []
    if frozen:
        pid = control.kill_part(stack.root, "part", signal.SIGSTOP)
        until(lambda: stack.states()["part"]["state"] == "unready", "it hangs")
    else:
        with pytest.raises(Unavailable, match="part failed"):
            stack.up(part)
    (still,) = of_parts(status_of(stack.root))
    assert (still.component, still.name) == ("part", "part")
    assert still.command == "penstock restart part"
    assert still.lasting == (not frozen)
    assert ("no answer on port" if frozen else "exit status 7") in still.cause
    if frozen:
        os.kill(pid, signal.SIGCONT)
        until(lambda: of_parts(status_of(stack.root)) == [], "it answers again")
        assert stack.states()["part"]["restarts"] == 0
    control.down(stack.root)
    assert of_parts(status_of(stack.root)) == [], "what is stopped does not stand still"


@pytest.mark.matrix
def test_p11_a_part_that_hangs_again_and_again_stands_still_and_says_so(stack: Bench) -> None:
    stack.up(stack.part("mute", hung_after_s=0.0, grace_s=0.2))
    for restarts in range(1, QUICK.cap + 1):
        control.kill_part(stack.root, "mute", signal.SIGSTOP)
        until(partial(_came_back, stack, "mute", restarts), "it is started again")
    control.kill_part(stack.root, "mute", signal.SIGSTOP)
    until(lambda: stack.states()["mute"]["state"] == "failed", "it is given up")
    assert "started again: no answer on port" in str(stack.states()["mute"]["reason"])
    assert not stack.living()


def test_a_second_up_attaches(stack: Bench) -> None:
    part = stack.part("part")
    stack.up(part)
    before = status_of(stack.root)
    stack.up(part, stack.part("more"))
    after = status_of(stack.root)
    assert after["supervisor"] == before["supervisor"]
    assert stack.events().count(("started", "part")) == 1
    assert stack.states()["more"]["state"] == "ready"


def test_two_at_the_same_moment_share_one_supervisor(stack: Bench) -> None:
    part = stack.part("part")
    options = UpOptions(parts=(), extra=lambda ports, env: [part])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: control.up(stack.root, options), range(4)))
    assert stack.events() == [("started", "part"), ("serving", "part")]


def test_a_part_deaf_to_signals_is_killed(stack: Bench) -> None:
    stack.up(stack.part("deaf", stubborn=True, grace_s=0.2))
    control.down(stack.root)
    assert not stack.living()
    assert ("ended", "deaf") not in stack.events()


def test_logs_stay_within_bounds(stack: Bench, tmp_path: Path) -> None:
    script = "import time\nfor n in range(20000): print(f'line {n:06}')\nprint('done', flush=True)"
    script += "\nwhile True: time.sleep(1)"
    stack.up(Part(name="loud", argv=("python3", "-S", "-c", script)), log_bytes=50_000)
    log = stack.workspace.log_of("loud")

    def printed() -> str:
        try:
            return log.read_text()
        except FileNotFoundError:
            return ""  # It is not there yet, or is being rotated.

    until(lambda: printed().endswith("done\n"), "all is printed")
    assert sum(file.stat().st_size for file in log.parent.glob("loud.log*")) <= 2 * (50_000 + 65536)
    assert list(logs.tail([log], lines=1)) == [("loud", "done")]
    control.kill_part(stack.root, "loud")


def test_a_part_that_steps_back_does_so_with_all_its_processes(stack: Bench) -> None:
    first = stack.part("first", offspring=1)
    stack.up(first, replace(stack.part("behind", offspring=1), niceness=7))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for name, niceness in (("first", 0), ("behind", 7)):
        pid = stack.states()[name]["pid"]
        assert isinstance(pid, int)
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        assert len(family) == 2
        assert [process.nice() for process in family] == [min(19, own + niceness)] * 2
        # The session has a priority of its own, where the kernel shares between sessions first.
        group = Path(f"/proc/{pid}/autogroup")
        if group.exists() and group.read_text().strip():
            assert group.read_text().split()[-1] == str(niceness)


def test_steps_run_once_before_the_first_start(stack: Bench, tmp_path: Path) -> None:
    made = tmp_path / "made"
    script = f"open({str(made)!r}, 'a').write('x')"
    part = stack.part("part")
    stepped = Part(
        name="part",
        argv=part.argv,
        probe=part.probe,
        steps=(Step(argv=("python3", "-c", script), creates=str(made)),),
    )
    stack.up(stepped)
    control.kill_part(stack.root, "part")
    until(lambda: stack.states()["part"]["restarts"] == 1, "it has died")
    until(lambda: stack.states()["part"]["state"] == "ready", "it is back")
    assert made.read_text() == "x"


def test_a_step_that_fails_is_the_reason(stack: Bench) -> None:
    failing = Step(argv=("python3", "-c", "raise SystemExit('no space')"), creates="/nowhere")
    part = Part(name="part", argv=("true",), steps=(failing,))
    with pytest.raises(Unavailable, match=r"python3 exited with 1: .*no space"):
        stack.up(part)


def test_endpoints_are_there_while_it_runs(stack: Bench) -> None:
    plan = StackPlan(parts=(stack.part("part"),), endpoints={"service.port": 1}, restarts=QUICK)
    control.launch(stack.workspace, plan)
    assert control.wait_ready(stack.workspace, plan, timeout_s=20) == {"service.port": 1}
    assert stack.workspace.endpoints_file.stat().st_mode & 0o077 == 0
    control.down(stack.root)
    assert not stack.workspace.endpoints_file.exists()


def test_reset_removes_the_stack_and_nothing_else(stack: Bench) -> None:
    stack.up(stack.part("part"))
    (stack.root / "lake").mkdir()
    control.reset(stack.root)
    assert sorted(path.name for path in stack.root.iterdir()) == ["journal", "lake"]
    assert not stack.living()
    assert control.reset(stack.root) == []


def test_reset_leaves_a_lake_that_lies_among_the_data_of_the_stack(stack: Bench) -> None:
    stack.up(stack.part("part"))
    lake = stack.workspace.folder / "data" / "lake"
    lake.mkdir(parents=True)
    (lake / "kept").write_text("rows")
    (lake.parent / "topics").mkdir()
    control.reset(stack.root, lake=lake)
    left = [path for path in stack.workspace.folder.rglob("*") if path.is_file()]
    assert left == [lake / "kept"]
    assert [path.name for path in lake.parent.iterdir()] == ["lake"]


def test_a_part_that_cannot_be_started_is_tried_again(
    stack: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine lacks memory or processes for a moment."""
    begin, tries = Running.start, [OSError(11, "no more processes")] * 2

    async def start(self: Running) -> None:
        if tries:
            raise tries.pop()
        await begin(self)

    monkeypatch.setattr(Running, "start", start)
    state = asyncio.run(_kept(stack, said=lambda _: None))
    assert state == ("ready", 2)


def test_a_part_is_watched_though_nobody_can_be_told_of_it(stack: Bench) -> None:
    def said(_: object) -> None:
        raise BrokenPipeError

    assert asyncio.run(_kept(stack, said=said)) == ("ready", 0)


async def _kept(stack: Bench, said: Callable[[object], None]) -> tuple[str, int]:
    """Supervise one part in this process until it is ready or failed, and stop it."""
    plan = StackPlan(parts=(stack.part("part"),), restarts=QUICK)
    stack.workspace.make()
    stack.workspace.write_plan(plan)
    supervisor = Supervisor(stack.workspace, on_change=said)
    running = asyncio.create_task(supervisor.run())
    while True:
        await asyncio.sleep(0.05)
        part = supervisor.parts.get("part")
        if part is not None and part.state in ("ready", "failed"):
            found = part.state, part.restarts
            break
    supervisor.stopping.set()
    await running
    return found


@pytest.mark.parametrize(
    ("needs", "complaint"),
    [({"a": ("b",), "b": ("a",)}, "circle"), ({"a": ("ghost",)}, "needs ghost")],
)
def test_a_plan_that_cannot_be_ordered_is_refused(
    needs: dict[str, tuple[str, ...]], complaint: str
) -> None:
    parts = [Part(name=name, argv=("true",), needs=need) for name, need in needs.items()]
    with pytest.raises(InvalidRequest, match=complaint):
        StackPlan(parts=tuple(parts))


def test_a_plan_survives_its_file(stack: Bench) -> None:
    part = stack.part("part")
    plan = StackPlan(
        parts=(Part(name="x", argv=("a", "b"), steps=(Step(argv=("c",), creates="d"),)), part),
        endpoints={"a.b": "c", "d.e": 1},
    )
    assert StackPlan.from_json(plan.to_json()) == plan


def test_the_bench_sees_the_living(stack: Bench) -> None:
    """Or else the tests of who is left over prove nothing."""
    stack.up(stack.part("part", offspring=1))
    assert len(stack.living()) == 2
    assert stack.states()["part"]["pid"] in stack.living()
