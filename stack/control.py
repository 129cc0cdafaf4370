"""Steer a workspace's stack: up, down, status, logs, reset. Used by the command line and by tests.

Every function works from outside the supervisor's process, through its files and two signals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from kernel.errors import Conflict, NotFound, Unavailable
from stack.accounts import data_folder, postgres_account
from stack.plan import Plan
from stack.planning import Options, make_plan
from stack.progress import Report, silent
from stack.running import Running
from stack.supervisor import EXIT_CLAIMED, Supervisor
from stack.workspace import Workspace

_POLL_S = 0.05


def up(path: Path, options: Options | None = None, report: Report = silent) -> dict[str, object]:
    """Start what is asked for, or attach to what runs already; return the endpoints once ready.

    A running stack keeps its parts and ports; parts that it lacks are added, failed ones tried
    again. Raises `Unavailable` naming the part that failed, with the last lines of its log; what
    did start goes on. Ctrl-C stops again what this call has started.
    """
    options = options or Options()
    try:
        return _up(Workspace.at(path), options, report)
    except Unavailable as error:
        if "ended" not in error.fields:
            raise
        # It attached to a supervisor that was just being stopped or killed.
        return _up(Workspace.at(path), options, report)


def _up(workspace: Workspace, options: Options, report: Report) -> dict[str, object]:
    workspace.make()
    with workspace.one_at_a_time():
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


def up_foreground(path: Path, options: Options, report: Report = silent) -> None:
    """Start and supervise in this process until Ctrl-C or SIGTERM, then stop all in order.

    Raises `Conflict` when a supervisor runs already.
    """
    workspace = Workspace.at(path)
    workspace.make()
    with workspace.one_at_a_time():
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


def launch(workspace: Workspace, plan: Plan) -> bool:
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
    workspace: Workspace, plan: Plan, *, timeout_s: float, report: Report = silent
) -> dict[str, object]:
    """Wait until all parts of `plan` are ready; return the endpoints.

    Raises `Unavailable` for a part that failed, a supervisor that ended, or when time is up.
    """
    limit = time.monotonic() + timeout_s
    said: dict[str, str] = {part.name: "waiting" for part in plan.parts}
    while True:
        alive = workspace.supervisor_pid() is not None
        states = _states(workspace, since=plan.number)
        for name in said:
            state = str(states.get(name, {}).get("state", "waiting"))
            if said[name] != state:
                report(f"{name}: {state}")
            said[name] = state
            if state == "failed":
                raise Unavailable(
                    f"{name} failed: {states[name]['reason']}",
                    remedy=f"See its log: penstock logs {name}. Then again: penstock up",
                    part=name,
                )
        if all(state == "ready" for state in said.values()):
            endpoints: dict[str, object] = json.loads(workspace.endpoints_file.read_text())
            return endpoints
        late = ", ".join(f"{name} ({state})" for name, state in said.items() if state != "ready")
        if not alive:
            raise Unavailable(
                f"the supervisor ended before all was ready: {late}",
                remedy=f"See {workspace.log_of('supervisor')}. Then again: penstock up",
                ended="supervisor",
            )
        if time.monotonic() > limit:
            raise Unavailable(f"not ready within {timeout_s:.0f} s: {late}")
        time.sleep(_POLL_S)


def down(path: Path, *, timeout_s: float = 90.0) -> bool:
    """Stop everything in order. Return whether anything ran."""
    workspace = Workspace.at(path)
    if not workspace.folder.exists() or (pid := workspace.supervisor_pid()) is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    limit = time.monotonic() + timeout_s
    while workspace.supervisor_pid() is not None:
        if time.monotonic() > limit:
            raise Unavailable(
                f"the supervisor (process {pid}) has not stopped within {timeout_s:.0f} s",
                remedy=f"See its log: penstock logs supervisor. To force it: kill -9 {pid}",
            )
        time.sleep(_POLL_S)
    return True


def kill_part(path: Path, name: str, number: int = signal.SIGKILL) -> int:
    """Send a signal to a part's own process, as a crash would. Return its process id."""
    workspace = Workspace.at(path)
    pid = _pid_of(workspace, name)
    if pid is None:
        raise NotFound(f"no part called {name} runs in {workspace.root}")
    os.kill(pid, number)
    return pid


def parts(path: Path) -> list[dict[str, object]]:
    """Return each part with state, pid, port and version. Cheap: who waits may ask all the time."""
    workspace = Workspace.at(path)
    supervised = workspace.supervisor_pid() is not None
    return [
        {
            "name": name,
            **part,
            "state": part["state"] if supervised else "stopped",
            "pid": _pid_of(workspace, name) if supervised else None,
        }
        for name, part in _states(workspace).items()
    ]


def status(path: Path) -> dict[str, object]:
    """Return what runs: the supervisor and each part with state, pid, port, version and memory.

    Memory is in megabytes over the part's whole process tree; shared pages count once where the
    system tells, else once per process. To find out, the system walks all memory of each process.
    """
    workspace = Workspace.at(path)
    supervisor = workspace.supervisor_pid()
    found = [
        {**part, "memory_mb": None if part["pid"] is None else _memory_mb(int(str(part["pid"])))}
        for part in parts(path)
    ]
    ready = bool(found) and all(part["state"] == "ready" for part in found)
    return {
        "workspace": str(workspace.root),
        "supervisor": supervisor,
        "state": ("ready" if ready else "unready") if supervisor else "stopped",
        "memory_mb": sum(int(str(part["memory_mb"])) for part in found if part["memory_mb"]),
        "parts": found,
    }


def reset(path: Path) -> list[Path]:
    """Stop the stack and remove its data: databases, topics, schemas, logs. Return what went.

    The lake and everything else in the workspace stays.
    """
    workspace = Workspace.at(path)
    if not workspace.folder.exists():
        return []
    down(path)
    workspace.await_release()
    gone = [data_folder(workspace, postgres_account()), workspace.folder]
    removed = [folder for folder in gone if folder.exists()]
    for folder in removed:
        shutil.rmtree(folder)
    return removed


def log_files(path: Path, part: str | None) -> list[Path]:
    """Return the log of one part, or all logs. Raises `NotFound` for an unknown part."""
    workspace = Workspace.at(path)
    found = sorted(workspace.logs.glob("*.log"))
    if part is None:
        return found
    if workspace.log_of(part) not in found:
        raise NotFound(
            f"no log of {part!r} in {workspace.logs}; there are: "
            + (", ".join(file.stem for file in found) or "none")
        )
    return [workspace.log_of(part)]


def _states(workspace: Workspace, since: int = 0) -> dict[str, dict[str, object]]:
    """Return what the supervisor says of its parts; nothing before it has read plan `since`."""
    try:
        document = json.loads(workspace.state_file.read_text())
    except FileNotFoundError:
        return {}
    if document["plan"] < since:
        return {}
    parts: dict[str, dict[str, object]] = document["parts"]
    return parts


def _pid_of(workspace: Workspace, name: str) -> int | None:
    try:
        return int(json.loads((workspace.run / f"{name}.pid").read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _memory_mb(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    return round(sum(map(_resident_bytes, tree)) / 1e6)


def _resident_bytes(process: psutil.Process) -> int:
    """Return a process's share of memory: shared pages divided among those who share them."""
    try:
        return int(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        pass
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
