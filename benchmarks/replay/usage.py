"""What a process and all that it started have used so far."""

from __future__ import annotations

import resource
from pathlib import Path

import psutil


def usage() -> dict[str, float]:
    """Return processor seconds and the most memory, of this process and of all together.

    The memory of all is as if they had had their most at one moment.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    own = used.ru_utime + used.ru_stime
    this = psutil.Process()
    # `ru_maxrss` has what the process that started this one had.
    peak = _peak(this)
    children = this.children(recursive=True)
    return {
        "cpu_s": own,
        "all_cpu_s": own + sum(map(_cpu, children)),
        "peak_bytes": peak,
        "all_peak_bytes": peak + sum(map(_peak, children)),
    }


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _peak(process: psutil.Process) -> int:
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
