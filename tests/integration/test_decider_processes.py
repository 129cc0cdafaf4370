"""Users' code in processes of its own: what does not end is killed and named, all else goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from eventstore.deciders.decided_events import DecidedLimits
from eventstore.deciders.live_deciders import begin_code
from eventstore.deciders.processes import Processes
from eventstore.deciders.tasks import Decide, Fold, Freeze, Unfolded
from kernel.errors import DeciderFailed, DeciderStopped, Overloaded, Refused, Unavailable
from tests.support.services.waiting import until

CODE = """
import enum, os, time
from dataclasses import dataclass
from eventstore.deciders import Decider, Event, Refused

class Kind(str, enum.Enum):
    DONE = "done"

class Never(Refused):
    pass

class Careless(Refused):
    def __init__(self, need):
        self.need = need

class Speechless(Exception):
    def __str__(self):
        raise SystemExit(4)

class Odd:
    pass

@dataclass(frozen=True)
class State:
    total: int = 0

def decide(command, state):
    match command.name:
        case "spin":
            while True:
                pass
        case "grow":
            held = []
            while True:
                held.append(bytearray(2**20))
        case "die":
            os.abort()
        case "exit":
            raise SystemExit(3)
        case "refuse":
            raise Never("it says no")
        case "refuse_carelessly":
            raise Careless(5)
        case "refuse_with":
            raise Refused("it says no", kind=Kind.DONE, at=command.at, odd=[Kind.DONE])
        case "refuse_oddly":
            raise Refused("it says no", odd=Odd())
        case "fall_silent":
            raise Speechless
        case "wait":
            time.sleep(command.data["s"])
    return [Event(Kind.DONE, {"pid": os.getpid(), "kind": Kind.DONE})]

def evolve(state: State, event) -> State:
    return State(state.total + 1)

names = (
    "do", "spin", "grow", "die", "exit", "refuse", "wait",
    "refuse_carelessly", "refuse_with", "refuse_oddly", "fall_silent",
)
one, other = (
    Decider(category=category, version=1, commands=dict.fromkeys(names), initial_state=State(),
            decide=decide, evolve=evolve)
    for category in ("one", "other")
)
"""
LIMIT_S = 2
LONG_S = 60
AT = datetime(2013, 1, 1, tzinfo=UTC)


def asking(name: str, category: str = "one", **data: Any) -> Decide:
    return Decide(
        entity=Unfolded(category=category),
        name=name,
        data=data,
        id="1",
        at=AT,
        limits=DecidedLimits(),
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "deciders").mkdir()
    (tmp_path / "deciders/both.py").write_text(CODE)
    return tmp_path


def begin(workspace: Path, *, most: int = 1, limit_s: float = LONG_S) -> Processes | None:
    return begin_code(
        workspace, most=most, limit_s=limit_s, memory_bytes=2**28, killed=lambda _: None
    )


@asynccontextmanager
async def begun(workspace: Path, *, most: int, limit_s: float) -> AsyncIterator[Processes]:
    processes = await asyncio.to_thread(begin, workspace, most=most, limit_s=limit_s)
    assert processes is not None
    try:
        yield processes
    finally:
        await asyncio.to_thread(processes.close)


def with_processes(
    workspace: Path,
    check: Callable[[Processes], Coroutine[Any, Any, None]],
    *,
    most: int = 3,
    limit_s: float = LONG_S,
) -> None:
    async def run() -> None:
        async with begun(workspace, most=most, limit_s=limit_s) as processes:
            await check(processes)

    asyncio.run(run())


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "eventstore.deciders.decider_process" in child.cmdline():
                found.append(child)
    return found


def test_a_workspace_without_code_needs_no_process(tmp_path: Path) -> None:
    assert begin(tmp_path) is None


def test_what_comes_back_are_plain_values(workspace: Path) -> None:
    async def check(processes: Processes) -> None:
        assert sorted(each.category for each in processes.told.deciders) == ["one", "other"]
        (event,) = await processes.run(asking("do"))
        assert (type(event.type), event.type, event.data["kind"]) == (str, "done", "done")
        state = await processes.run(Fold(entity=Unfolded(category="one")))
        assert await processes.run(Freeze(entity=Unfolded(category="one", state=state))) == {
            "total": 0
        }
        with pytest.raises(Refused, match="it says no") as refused:
            await processes.run(asking("refuse"))
        assert type(refused.value) is Refused
        with pytest.raises(DeciderFailed, match=r"both.py:\d+: decider one: SystemExit: 3"):
            await processes.run(asking("exit"))
        assert processes.stopped == {}

    with_processes(workspace, check)


def test_what_is_refused_keeps_its_reason_as_plain_values(workspace: Path) -> None:
    async def check(processes: Processes) -> None:
        (before,) = await processes.run(asking("do"))
        with pytest.raises(Refused, match="it says no") as refused:
            await processes.run(asking("refuse_with"))
        fields = refused.value.fields
        assert fields == {"kind": "done", "at": "2013-01-01T00:00:00Z", "odd": ["done"]}
        assert (type(fields["kind"]), type(fields["at"])) == (str, str)
        with pytest.raises(Refused, match="5") as refused:
            await processes.run(asking("refuse_carelessly"))
        assert type(refused.value) is Refused
        with pytest.raises(DeciderFailed, match=r"both.py:\d+: decider one: .*no JSON.*Odd"):
            await processes.run(asking("refuse_oddly"))
        (after,) = await processes.run(asking("do"))
        assert after.data["pid"] == before.data["pid"]

    with_processes(workspace, check)


@pytest.mark.parametrize(
    "name",
    [
        "fall_silent",
        *(
            pytest.param(how, marks=pytest.mark.matrix)
            for how in ("refuse_carelessly", "refuse_oddly")
        ),
    ],
)
def test_an_odd_error_ends_no_call_of_another_decider(workspace: Path, name: str) -> None:
    async def check(processes: Processes) -> None:
        other = asyncio.create_task(processes.run(asking("wait", "other", s=1)))
        with pytest.raises((Refused, DeciderFailed)):
            await processes.run(asking(name))
        assert await other
        assert processes.stopped == {}

    with_processes(workspace, check)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("spin", f"took longer than {LIMIT_S} s"),
        ("grow", "needed more than 256 MiB"),
        ("die", "ended its process"),
    ],
)
def test_code_that_does_not_end_is_killed_and_named(
    workspace: Path, name: str, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    async def check(processes: Processes) -> None:
        (before,) = await processes.run(asking("do"))
        with pytest.raises(DeciderStopped) as stopped:
            await processes.run(asking(name))
        assert stopped.value.message == f"decider one {cause}"
        assert stopped.value.fields == {"of": "decider one", "cause": cause}
        assert {of: (s.count, s.cause) for of, s in processes.stopped.items()} == {
            "decider one": (1, cause)
        }
        until(lambda: not psutil.pid_exists(before.data["pid"]), "its process is gone")
        (after,) = await processes.run(asking("do"))
        assert after.data["pid"] != before.data["pid"]

    with_processes(workspace, check, limit_s=LIMIT_S if name == "spin" else LONG_S)
    if name == "spin":
        stack = capfd.readouterr().err
        assert re.search(rf'File "{workspace}/deciders/both.py", line \d+ in decide', stack), stack


@pytest.mark.matrix
def test_a_task_that_does_not_fit_in_memory_stops_its_decider_alone(workspace: Path) -> None:
    async def check(processes: Processes) -> None:
        other = asyncio.create_task(processes.run(asking("wait", "other", s=2)))
        with pytest.raises(DeciderStopped, match="decider one needed more than 256 MiB"):
            await processes.run(asking("do", text=bytes(2**28)))
        assert await other
        assert set(processes.stopped) == {"decider one"}

    with_processes(workspace, check)


def test_a_caller_that_goes_away_at_the_deadline_leaves_no_process(workspace: Path) -> None:
    """It goes while the stack of the process is being written."""

    async def check(processes: Processes) -> None:
        shown = asyncio.Event()

        async def show(_: object) -> None:
            shown.set()
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("eventstore.deciders.processes._show_stack", show)
            call = asyncio.create_task(processes.run(asking("spin")))
            await shown.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert processes.stopped["decider one"].count == 1
        until(lambda: len(children()) == 1, "its process is gone")

    with_processes(workspace, check, limit_s=0.2)


@pytest.mark.matrix
def test_a_decider_that_hangs_leaves_processes_to_the_others(workspace: Path) -> None:
    """However many of its calls there are: it never has all, and once it hung only one."""

    async def check(processes: Processes) -> None:
        hanging = [asyncio.create_task(processes.run(asking("spin"))) for _ in range(4)]
        await asyncio.sleep(0)
        while not all(each.done() for each in hanging):
            await processes.run(asking("do", "other"))
            assert len(children()) <= 1 + 3
        assert {type(each.exception()) for each in hanging} == {DeciderStopped}
        assert processes.stopped["decider one"].count == 4

    with_processes(workspace, check, limit_s=LIMIT_S)


def test_one_process_serves_all_in_turn(workspace: Path) -> None:
    async def check(processes: Processes) -> None:
        answers = await asyncio.gather(*(processes.run(asking("do")) for _ in range(20)))
        assert len({event.data["pid"] for (event,) in answers}) == 1

    with_processes(workspace, check, most=1)


def test_a_caller_that_goes_away_ends_its_call_alone(workspace: Path) -> None:
    async def check(processes: Processes) -> None:
        (before,) = await processes.run(asking("do"))
        call = asyncio.create_task(processes.run(asking("wait", s=60)))
        await asyncio.sleep(0)  # It takes the idle process.
        (other,) = await processes.run(asking("do"))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        taken = {before.data["pid"], other.data["pid"]}
        until(lambda: sum(map(psutil.pid_exists, taken)) == 1, "the call's process is gone")
        (again,) = await processes.run(asking("do"))
        assert again.data["pid"] in taken
        assert processes.stopped == {}

    with_processes(workspace, check)


def test_more_calls_than_may_wait_are_turned_away(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.deciders.processes.MAX_WAITING", 3)

    async def check(processes: Processes) -> None:
        running = [asyncio.create_task(processes.run(asking("wait", s=0.1))) for _ in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await processes.run(asking("do"))
        assert all(await asyncio.gather(*running))

    with_processes(workspace, check, most=1)


def test_a_lost_nursery_is_told_and_leaves_nothing_behind(workspace: Path) -> None:
    async def check(processes: Processes) -> None:
        (nursery,) = (each for each in children() if each.ppid() == os.getpid())
        call = asyncio.create_task(processes.run(asking("do")))
        nursery.send_signal(signal.SIGKILL)
        with suppress(Unavailable):
            await call
        until(lambda: processes.lost, "it is noticed")
        processes.retire()
        with pytest.raises(Unavailable, match="the process of the workspace's code ended with -9"):
            await processes.run(asking("do"))

    with_processes(workspace, check)
    until(lambda: not children(), "all processes are gone")


FORKS_LATER = """
import errno, os
fork, left = os.fork, [OSError(errno.EAGAIN, "no room")]

def os_fork():
    if left:
        raise left.pop()
    return fork()

os.fork = os_fork
"""


def test_a_fork_that_fails_is_told_and_tried_again(workspace: Path) -> None:
    file = workspace / "deciders/both.py"
    file.write_text(FORKS_LATER + file.read_text())

    async def check(processes: Processes) -> None:
        with pytest.raises(Unavailable, match="no process for the workspace's code: Resource temp"):
            await processes.run(asking("do"))
        assert await processes.run(asking("do"))
        assert not processes.lost

    with_processes(workspace, check)


def test_a_machine_without_room_for_a_process_is_told(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("subprocess.Popen", full)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(Unavailable, match=r"no process for the workspace's code: .*no memory"):
        begin(workspace)
    assert set(os.listdir("/proc/self/fd")) == before


def test_code_that_cannot_be_loaded_is_told_as_it_is(workspace: Path) -> None:
    file = workspace / "deciders/both.py"
    file.write_text("import os\n\nfrom eventstore.deciders import Desider\n")
    with pytest.raises(DeciderFailed, match=f"{file}:3: "):
        begin(workspace)


@pytest.mark.parametrize(
    ("text", "load_s", "cause"),
    [
        pytest.param(
            "while True:\n    pass\n", 2, "took longer than 2 s", marks=pytest.mark.matrix
        ),
        ("import os; os.abort()", 60, "ended its process"),
    ],
)
def test_code_that_is_never_loaded_is_killed(
    workspace: Path, text: str, load_s: int, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.deciders.processes.LOAD_S", load_s)
    (workspace / "deciders/both.py").write_text(text)
    with pytest.raises(DeciderStopped, match=f"loading the workspace's code {cause}"):
        begin(workspace)
    assert not children()


NAMED = """
import enum
from eventstore.deciders import Decider
from eventstore.upcasting import Upcaster

class Name(enum.StrEnum):
    CATEGORY = "account"
    OPEN = "open"
    EVENT = "account.Opened"

class Step(enum.IntEnum):
    FIRST = 1

def decide(command, state):
    return []

def evolve(state, event):
    return state
"""


def test_names_may_be_of_enums(workspace: Path) -> None:
    """The service has no classes of the workspace's code, so it is told plain names."""
    (workspace / "deciders/both.py").write_text(
        NAMED + "accounts = Decider(category=Name.CATEGORY, version=1, initial_state={},\n"
        "    commands={Name.OPEN: None}, decide=decide, evolve=evolve)\n"
    )
    (workspace / "upcasters").mkdir()
    (workspace / "upcasters/opened.py").write_text(
        NAMED + "step = Upcaster(event=Name.EVENT, version=Step.FIRST, upcast=dict)\n"
    )

    async def check(processes: Processes) -> None:
        (told,) = processes.told.deciders
        assert (told.category, told.commands) == ("account", ("open",))
        assert processes.told.upcasters == (("account.Opened", 1),)
        assert await processes.run(asking("open", "account")) == []

    with_processes(workspace, check)
