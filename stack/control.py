"""Steer a workspace's stack: up, down, restart, reset. Used by the command line and by tests.

Every function works from outside the supervisor's process, through its files and two signals.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kernel.errors import Conflict, Misconfigured, NotFound, Unavailable
from stack.accounts import data_folder, postgres_account
from stack.logs import last_words
from stack.plan import StackPlan
from stack.planning import UpOptions, make_plan
from stack.progress import Report, silent
from stack.running_part import WAITS, Running
from stack.status import parts as parts_of
from stack.status import states_of
from stack.supervisor import EXIT_CLAIMED, Supervisor
from stack.workspace import Workspace, owner_if_another

_POLL_S = 0.05


def up(path: Path, options: UpOptions | None = None, report: Report = silent) -> dict[str, object]:
    """Start what is asked for, or attach to what runs already; return the endpoints once ready.

    A running stack keeps its parts and ports; parts that it lacks are added, failed ones tried
    again. Raises `Unavailable` naming the part that failed, with the last lines of its log; what
    did start goes on. Ctrl-C stops again what this call has started.
    """
    options = options or UpOptions()
    try:
        return _up(Workspace.at(path), options, report)
    except Unavailable as error:
        if "never_began" not in error.fields:
            raise
        # It attached to a supervisor that was just being stopped or killed.
        return _up(Workspace.at(path), options, report)


def _up(workspace: Workspace, options: UpOptions, report: Report) -> dict[str, object]:
    workspace.make()
    with workspace.one_at_a_time(report=report):
        if workspace.supervisor_pid() is None:
            workspace.await_release(report=report)
        plan = make_plan(workspace, options, report)
        started = launch(workspace, plan)
    try:
        return wait_ready(workspace, plan, timeout_s=options.timeout_s, report=report)
    except KeyboardInterrupt:
        if started:
            report("interrupted: stopping what was started")
            down(workspace.root)
        raise


def up_foreground(path: Path, options: UpOptions, report: Report = silent) -> None:
    """Start and supervise in this process until Ctrl-C or SIGTERM, then stop all in order.

    Raises `Conflict` when a supervisor runs already.
    """
    workspace = Workspace.at(path)
    workspace.make()
    with workspace.one_at_a_time(report=report):
        if (pid := workspace.supervisor_pid()) is not None:
            raise Conflict(
                f"the stack runs already, under process {pid}",
                remedy="Attach to it with: penstock up. Or stop it first: penstock down",
            )
        workspace.write_plan(make_plan(workspace, options, report))
        lock = workspace.claim()
    if lock is None:
        raise Conflict("another supervisor was quicker")

    def say(running: Running) -> None:
        report(f"{running.part.name}: {running.state} {running.reason or ''}".rstrip())

    asyncio.run(Supervisor(workspace, on_change=say).run())
    lock.release()


def launch(workspace: Workspace, plan: StackPlan) -> bool:
    """Hand a plan to the workspace's supervisor. Return whether one had to be started for it."""
    workspace.make()
    workspace.write_plan(plan)
    pid = workspace.supervisor_pid()
    if pid is not None:
        os.kill(pid, signal.SIGUSR1)
        return False
    with workspace.log_of("supervisor").open("ab") as log:
        code = subprocess.run(
            # -P: a folder called `stack` in the working folder must not be taken for ours.
            [sys.executable, "-P", "-m", "stack.supervisor", str(workspace.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            check=False,
        ).returncode
    if code == EXIT_CLAIMED:
        return launch(workspace, plan)
    if code != 0:
        raise Unavailable(
            f"the supervisor did not start: exit status {code}",
            remedy=f"See {workspace.log_of('supervisor')}",
        )
    return True


def wait_ready(
    workspace: Workspace, plan: StackPlan, *, timeout_s: float, report: Report = silent
) -> dict[str, object]:
    """Wait until all parts of `plan` are ready; return the endpoints.

    Raises `Unavailable` for a part that failed, a supervisor that ended, or when time is up.
    """
    limit = time.monotonic() + timeout_s
    said: dict[str, str] = {part.name: "waiting" for part in plan.parts}
    while True:
        alive = workspace.supervisor_pid() is not None
        states = states_of(workspace, since=plan.number)
        for name in said:
            state = str(states.get(name, {}).get("state", "waiting"))
            if said[name] != state:
                report(f"{name}: {state}")
            said[name] = state
            if state == "failed":
                raise Unavailable(
                    f"{name} failed: {states[name]['reason']}",
                    remedy=f"See its log, {workspace.log_of(name)}: penstock logs {name}."
                    " Then again: penstock up",
                    part=name,
                )
        if all(state == "ready" for state in said.values()):
            endpoints: dict[str, object] = json.loads(workspace.endpoints_file.read_text())
            return endpoints
        late = [name for name, state in said.items() if state != "ready"]
        if not alive:
            raise _ended(workspace, plan, late)
        if time.monotonic() > limit:
            raise _not_ready(workspace, states, late, timeout_s)
        time.sleep(_POLL_S)


def _ended(workspace: Workspace, plan: StackPlan, late: Sequence[str]) -> Unavailable:
    """Tell a supervisor that was stopped from one that was killed, or never took up this plan."""
    left = states_of(workspace, since=plan.number)
    if left and all(part["state"] == "stopped" for part in left.values()):
        return Unavailable(
            f"another command stopped the stack before all was ready: {', '.join(late)}",
            remedy="Start it again, when it is wanted: penstock up",
        )
    return Unavailable(
        f"the supervisor ended before all was ready: {', '.join(late)}",
        remedy=f"See {workspace.log_of('supervisor')}. Then again: penstock up",
        **({} if left else {"never_began": True}),
    )


def _not_ready(
    workspace: Workspace,
    states: Mapping[str, Mapping[str, object]],
    late: Sequence[str],
    timeout_s: float,
) -> Unavailable:
    """Say of each part that is late what it does, what it said last and why it ended before.

    What waits for another part comes behind those that do not: these are the cause.
    """

    def behind_another(name: str) -> bool:
        return str(states.get(name, {}).get("reason")).startswith(WAITS)

    ordered = sorted(late, key=behind_another)
    first = ordered[0]
    lines = [_late(workspace, name, states.get(name, {})) for name in ordered]
    return Unavailable(
        f"not ready within {timeout_s:.0f} s: " + "; ".join(lines),
        remedy=f"See its log, {workspace.log_of(first)}: penstock logs {first}."
        " The parts go on to start: penstock status. Then again: penstock up",
        part=first,
        late=" ".join(ordered),
    )


def _late(workspace: Workspace, name: str, found: Mapping[str, object]) -> str:
    state, reason = found.get("state", "waiting"), found.get("reason")
    line = f"{name} is {state}" + (f": {reason}" if reason else "")
    if state == "starting":
        line += f"; last lines of its log: {last_words(workspace.log_of(name))}"
    if found.get("ended") and found["ended"] != reason:
        line += f"; it ended {found['restarts']} times, the last one: {found['ended']}"
    return line


def down(path: Path, *, timeout_s: float = 90.0) -> bool:
    """Stop everything in order. Return whether anything ran.

    Raises `Conflict` while another command is about to start the stack, `Misconfigured` for the
    stack of another user.
    """
    workspace = Workspace.at(path)
    if not workspace.folder.exists():
        return False
    about_to_start = workspace.being_changed()
    if (pid := workspace.supervisor_pid()) is None:
        if about_to_start:
            raise Conflict(
                "nothing runs yet, and another command is about to start the stack",
                remedy="End that one with Ctrl-C, or wait until it has: penstock down",
            )
        return False
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        whose = owner_if_another(workspace.folder) or "another user"
        raise Misconfigured(
            f"the stack runs as {whose}, who alone may stop it (process {pid})",
            remedy=f"Give the command as {whose}.",
        ) from error
    limit = time.monotonic() + timeout_s
    while workspace.supervisor_pid() is not None:
        if time.monotonic() > limit:
            raise Unavailable(
                f"the supervisor (process {pid}) has not stopped within {timeout_s:.0f} s",
                remedy=f"See its log: penstock logs supervisor. To force it: kill -9 {pid}",
            )
        time.sleep(_POLL_S)
    return True


def restart(
    path: Path, name: str, *, timeout_s: float = 600.0, report: Report = silent
) -> dict[str, object]:
    """Stop one part of a running stack in order, start it again, and return once it is ready.

    Parts that need it go on meanwhile, as they do when it dies. Return what `status` says of it.
    Raises `Unavailable` when no stack runs, or the part does not come back; `NotFound`.
    """
    workspace = Workspace.at(path)
    if not workspace.folder.exists() or workspace.supervisor_pid() is None:
        raise Unavailable("no stack runs here", remedy="Start it: penstock up")
    with workspace.one_at_a_time(report=report):
        plan = workspace.read_plan()
        parts = {part.name: part for part in plan.parts}
        if name not in parts:
            raise NotFound(
                f"no part called {name!r}; there are: {', '.join(parts)}",
                remedy="See what runs: penstock status",
            )
        number = time.time_ns()
        parts[name] = replace(parts[name], generation=number)
        plan = replace(plan, parts=tuple(parts.values()), number=number)
        launch(workspace, plan)
    # Of the plan only this part matters here, so what it needs is left out.
    alone = replace(plan, parts=(replace(parts[name], needs=()),))
    wait_ready(workspace, alone, timeout_s=timeout_s, report=report)
    (found,) = [part for part in parts_of(path) if part["name"] == name]
    return found


def kill_part(path: Path, name: str, number: int = signal.SIGKILL) -> int:
    """Send a signal to a part's own process, as a crash would. Return its process id."""
    workspace = Workspace.at(path)
    pid = workspace.pid_of(name)
    if pid is None:
        raise NotFound(f"no part called {name} runs in {workspace.root}")
    os.kill(pid, number)
    return pid


def reset(path: Path, *, lake: Path | None = None) -> list[Path]:
    """Stop the stack and remove its data: databases, topics, schemas, logs. Return what went.

    The lake and everything else in the workspace stays, also a lake that lies among the data.
    Raises `Conflict` while the stack of another workspace runs in there, as a demo's that was kept.
    """
    workspace = Workspace.at(path)
    if not workspace.folder.exists():
        return []
    for lock in workspace.folder.glob("*/.penstock/run/supervisor.lock"):
        inner = Workspace(root=lock.parents[2])
        if inner.supervisor_pid() is not None:
            raise Conflict(
                f"a stack runs in {inner.root}, which would be removed as well",
                remedy=f"Stop it first: penstock down -w {shlex.quote(str(inner.root))}",
            )
    down(path)
    workspace.await_release()
    removed = [folder for folder in _made(workspace) if folder.exists()]
    for folder in removed:
        _remove(folder.resolve(), None if lake is None else lake.resolve())
        if folder.is_symlink():
            # A link to another disk is the user's own: it stays, and leads to an empty folder.
            folder.resolve().mkdir(exist_ok=True)
    return removed


def _made(workspace: Workspace) -> list[Path]:
    """Return the folders that hold what a stack keeps, the one of all others last."""
    try:
        return [data_folder(workspace, postgres_account()), workspace.folder]
    except Misconfigured:
        # PostgreSQL's account cannot reach its data any more; whoever removes them need not be it.
        return [workspace.folder]


def _remove(folder: Path, kept: Path | None) -> None:
    """Remove a folder but for the one in it that is kept, and those that lead there."""
    if kept is None or not kept.is_relative_to(folder) or not kept.exists():
        shutil.rmtree(folder)
        return
    if folder == kept:
        return
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            _remove(entry, kept)
        else:
            entry.unlink()
