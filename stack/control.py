"""Steer a workspace's stack: up, down, status, logs, reset. Used by the command line and by tests.

Every function works from outside the supervisor's process, through its files and two signals.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from kernel.errors import Conflict, InvalidRequest, Misconfigured, NotFound, Unavailable
from stack import parts as definitions
from stack.accounts import data_folder, postgres_account, postgres_place
from stack.jars import resolve
from stack.java import find_java
from stack.plan import Part, Plan, in_order, write_atomically
from stack.ports import DEFAULT_BASE, choose
from stack.progress import Report, silent
from stack.running import Running
from stack.supervisor import Supervisor
from stack.workspace import Workspace

LOCAL_PARTS = ("postgres", "kafka", "registry", "connect")
"""The parts that the stack itself defines, in the order of starting."""

_POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `up` is asked for.

    `parts` of `LOCAL_PARTS`; `postgres_dsn` replaces the local PostgreSQL; `wanted_ports` by name
    of `ports.NAMES` beat `port_base`; `extra` makes further parts once ports are known.
    """

    parts: tuple[str, ...] = LOCAL_PARTS
    postgres_dsn: str | None = None
    registry_database: str = definitions.REGISTRY_DATABASE
    port_base: int = DEFAULT_BASE
    wanted_ports: Mapping[str, int] = field(default_factory=dict)
    offline: bool = False
    mirror: str | None = None
    extra: Callable[[Mapping[str, int], Mapping[str, str]], Sequence[Part]] | None = None
    extra_ports: tuple[str, ...] = ()
    timeout_s: float = 300.0


def up(path: Path, options: Options | None = None, report: Report = silent) -> dict[str, object]:
    """Start what is asked for, or attach to what runs already; return the endpoints once ready.

    A running stack keeps its parts and ports; parts that it lacks are added, failed ones tried
    again. Raises `Unavailable` naming the part that failed, with the last lines of its log.
    """
    options = options or Options()
    workspace = Workspace.at(path)
    workspace.make()
    with workspace.one_at_a_time():
        plan = make_plan(workspace, options, report)
        launch(workspace, plan)
    names = [part.name for part in plan.parts]
    return wait_ready(workspace, names, timeout_s=options.timeout_s, report=report)


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

    with lock:
        asyncio.run(Supervisor(workspace, on_change=say).run())


def make_plan(workspace: Workspace, options: Options, report: Report) -> Plan:
    """Work out parts, ports and files. What a running stack has already is taken over as it is."""
    running = workspace.read_plan() if workspace.supervisor_pid() else None
    kept = {part.name: part for part in running.parts} if running else {}
    used = _remembered_ports(workspace)
    local = tuple(
        name
        for name in LOCAL_PARTS
        if name in options.parts and not (name == "postgres" and options.postgres_dsn)
    )
    names = _port_names((*local, *options.extra_ports))
    held = {name: used[name] for name in names if name in used and _holds(kept, name)}
    wanted = {**_if_same_base(workspace, options.port_base), **options.wanted_ports}
    free = tuple(name for name in names if name not in held)
    ports = {**held, **choose(options.port_base, wanted, free)}
    made = _make_parts(workspace, options, local, ports, report)
    merged = {**{part.name: part for part in made}, **kept}
    _remember_ports(workspace, options.port_base, {**used, **ports} if running else ports)
    endpoints = _endpoints(workspace, merged, ports if not running else {**used, **ports}, options)
    return Plan(parts=tuple(in_order(merged.values())), endpoints=endpoints)


def launch(workspace: Workspace, plan: Plan) -> None:
    """Hand a plan to the workspace's supervisor, starting one if none runs."""
    workspace.make()
    pid = workspace.supervisor_pid()
    workspace.write_plan(plan)
    if pid is not None:
        os.kill(pid, signal.SIGUSR1)
        return
    workspace.state_file.unlink(missing_ok=True)
    with workspace.log_of("supervisor").open("ab") as log:
        subprocess.Popen(
            # -P: a folder called `stack` in the working folder must not be taken for ours.
            [sys.executable, "-P", "-m", "stack.supervisor", str(workspace.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def wait_ready(
    workspace: Workspace, names: Sequence[str], *, timeout_s: float, report: Report = silent
) -> dict[str, object]:
    """Wait until the named parts are ready; return the endpoints.

    Raises `Unavailable` for a part that failed, a supervisor that ended, or when time is up.
    """
    limit = time.monotonic() + timeout_s
    said: dict[str, str] = {}
    while True:
        parts = _states(workspace)
        for name in names:
            state = str(parts.get(name, {}).get("state", "waiting"))
            if said.get(name) != state and state != "waiting":
                report(f"{name}: {state}")
            said[name] = state
        failed = [name for name in names if said[name] == "failed"]
        if failed:
            raise Unavailable(
                f"{failed[0]} failed: {parts[failed[0]].get('reason')}",
                remedy=f"See its log: penstock logs {failed[0]}. Then again: penstock up",
                part=failed[0],
            )
        if all(said[name] == "ready" for name in names):
            endpoints: dict[str, object] = json.loads(workspace.endpoints_file.read_text())
            return endpoints
        if time.monotonic() > limit:
            late = ", ".join(
                f"{name} ({state})" for name, state in said.items() if state != "ready"
            )
            raise Unavailable(f"not ready within {timeout_s:.0f} s: {late}")
        time.sleep(_POLL_S)


def down(path: Path, *, timeout_s: float = 90.0) -> bool:
    """Stop everything in order. Return whether anything ran."""
    workspace = Workspace.at(path)
    pid = workspace.supervisor_pid()
    if pid is None:
        return False
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


def status(path: Path) -> dict[str, object]:
    """Return what runs: the supervisor and each part with state, pid, port, version and memory.

    Memory is in megabytes over the part's whole process tree; shared pages count once where the
    system tells, else once per process.
    """
    workspace = Workspace.at(path)
    supervisor = workspace.supervisor_pid()
    parts = [
        {
            "name": name,
            **part,
            "state": part["state"] if supervisor else "stopped",
            "pid": (pid := _pid_of(workspace, name) if supervisor else None),
            "memory_mb": None if pid is None else _memory_mb(pid),
        }
        for name, part in _states(workspace).items()
    ]
    ready = bool(parts) and all(part["state"] == "ready" for part in parts)
    return {
        "workspace": str(workspace.root),
        "supervisor": supervisor,
        "state": ("ready" if ready else "unready") if supervisor else "stopped",
        "memory_mb": sum(int(str(part["memory_mb"])) for part in parts if part["memory_mb"]),
        "parts": parts,
    }


def reset(path: Path) -> list[Path]:
    """Stop the stack and remove its data: databases, topics, schemas, logs. Return what went.

    The lake and everything else in the workspace stays.
    """
    workspace = Workspace.at(path)
    down(path)
    if not workspace.folder.exists():
        return []
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


def _make_parts(
    workspace: Workspace,
    options: Options,
    local: tuple[str, ...],
    ports: Mapping[str, int],
    report: Report,
) -> list[Part]:
    unknown = set(options.parts) - set(LOCAL_PARTS)
    if unknown:
        raise InvalidRequest(f"no part {min(unknown)!r}; there are: {', '.join(LOCAL_PARTS)}")
    made: list[Part] = []
    dsn = options.postgres_dsn or ""
    if "postgres" in local:
        password = _password(workspace)
        made.append(definitions.postgres(postgres_place(workspace), ports["postgres"], password))
        dsn = definitions.local_dsn(ports["postgres"], password)
    java_home: dict[str, str] = {}
    if set(local) - {"postgres"} or options.extra_ports:
        java = find_java()
        java_home = {"JAVA_HOME": str(java.home)}
    if set(local) - {"postgres"}:
        jars = resolve(offline=options.offline, mirror=options.mirror, progress=report)
        around = definitions.Surroundings(
            folder=workspace.folder, ports=ports, jars=jars, java=java, dsn=dsn
        )
        made.extend(_java_parts(around, options, local))
    if options.extra is not None:
        made.extend(_pruned(part, made) for part in options.extra(ports, java_home))
    return made


def _java_parts(
    around: definitions.Surroundings, options: Options, local: tuple[str, ...]
) -> list[Part]:
    made = []
    if "kafka" in local:
        made.append(definitions.kafka(around))
    if "registry" in local:
        if not around.dsn:
            raise Misconfigured(
                "the registry keeps its schemas in PostgreSQL, and there is none",
                remedy="Add the part postgres, or name a server: --postgres DSN",
            )
        needs = ("postgres",) if "postgres" in local else ()
        made.append(definitions.registry(around, options.registry_database, needs))
    if "connect" in local:
        if "kafka" not in local:
            raise InvalidRequest("connect needs kafka: add it to --only")
        # Its connectors go on at once when it starts, and need all three.
        made.append(definitions.connect(around, tuple(n for n in local if n != "connect")))
    return made


def _pruned(part: Part, made: Sequence[Part]) -> Part:
    """Leave out needs that this stack does not run itself."""
    names = {other.name for other in made}
    return replace(part, needs=tuple(need for need in part.needs if need in names))


def _endpoints(
    workspace: Workspace,
    parts: Mapping[str, Part],
    ports: Mapping[str, int],
    options: Options,
) -> dict[str, str | int]:
    found: dict[str, str | int] = {}
    if "postgres" in parts:
        found["postgres.dsn"] = definitions.local_dsn(ports["postgres"], _password(workspace))
    elif options.postgres_dsn:
        found["postgres.dsn"] = options.postgres_dsn
    if "kafka" in parts:
        found["kafka.bootstrap"] = f"127.0.0.1:{ports['kafka']}"
    for name in ("registry", "connect", "service", "pipeline"):
        if name in parts:
            found[f"{name}.url"] = f"http://127.0.0.1:{ports[name]}"
        if name in parts and name in ("service", "pipeline"):
            found[f"{name}.port"] = ports[name]
    return found


def _port_names(parts: Sequence[str]) -> tuple[str, ...]:
    return (*parts, "kafka_controller") if "kafka" in parts else tuple(parts)


def _holds(kept: Mapping[str, Part], port: str) -> bool:
    return port in kept or (port == "kafka_controller" and "kafka" in kept)


def _password(workspace: Workspace) -> str:
    """Return the workspace's own database password, made at first use. Readable by its user."""
    file = workspace.folder / "password"
    if not file.exists():
        write_atomically(file, secrets.token_urlsafe(24), mode=0o600)
    return file.read_text()


def _remembered_ports(workspace: Workspace) -> dict[str, int]:
    file = workspace.folder / "ports.json"
    if not file.exists():
        return {}
    ports: dict[str, int] = json.loads(file.read_text())["ports"]
    return ports


def _if_same_base(workspace: Workspace, base: int) -> dict[str, int]:
    """Prefer the ports of the last run, unless another range is asked for."""
    file = workspace.folder / "ports.json"
    if not file.exists() or json.loads(file.read_text())["base"] != base:
        return {}
    return _remembered_ports(workspace)


def _remember_ports(workspace: Workspace, base: int, ports: Mapping[str, int]) -> None:
    text = json.dumps({"base": base, "ports": dict(ports)})
    write_atomically(workspace.folder / "ports.json", text)


def _states(workspace: Workspace) -> dict[str, dict[str, object]]:
    try:
        parts: dict[str, dict[str, object]] = json.loads(workspace.state_file.read_text())["parts"]
    except FileNotFoundError:
        return {}
    return parts


def _pid_of(workspace: Workspace, name: str) -> int | None:
    try:
        return int(json.loads((workspace.run / f"{name}.pid").read_text())["pid"])
    except (OSError, ValueError, KeyError):
        return None


def _memory_mb(pid: int) -> int:
    total = 0
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in tree:
        try:
            total += process.memory_full_info().pss
        except (psutil.Error, AttributeError):
            try:
                total += process.memory_info().rss
            except psutil.Error:
                continue
    return round(total / 1e6)
