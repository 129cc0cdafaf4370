"""Work at a low priority: children of the pipeline, which end with it, and long commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import IO

NICENESS = 10


def start_child(module: str) -> subprocess.Popen[bytes]:
    """Start `python -m module` with pipes, at a low priority: it gets what is left."""
    # -P: what lies in the working directory, a workspace, is not to be imported.
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, child.pid, own + NICENESS)
    except ProcessLookupError:
        pass  # It has ended already; its pipes will tell.
    return child


def step_back() -> None:
    """Let others go first where processors are short, as children here do, from now on.

    To be called before there are threads: these have priorities of their own.
    """
    os.nice(NICENESS)


def answers_of_child() -> IO[bytes]:
    """Return where a child writes its answers; what else it prints goes to its errors."""
    # Ctrl-C reaches the whole group; the parent says when it is over.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers
