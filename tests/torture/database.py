"""The PostgreSQL of a run: the stack's own, kept up by its supervisor, whatever is killed."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from stack import control
from stack.plan import Restarts
from stack.planning import UpOptions, make_plan
from stack.workspace import Workspace

_READY_S = 120.0
# It dies every half minute here, and that is no reason to give it up or to let it wait.
_RESTARTS = Restarts(cap=1_000_000, base_s=0.1, most_s=0.1)


class Database(Protocol):
    """A PostgreSQL that can be killed, and comes back by itself."""

    @property
    def dsn(self) -> str:
        """Its address, as a superuser."""
        ...

    def kill(self) -> None:
        """Kill its postmaster with SIGKILL."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StackDatabase:
    """The PostgreSQL of a workspace of its own."""

    folder: Path
    dsn: str

    def kill(self) -> None:
        """Kill the postmaster; the supervisor starts another one."""
        control.kill_part(self.folder, "postgres")


@contextmanager
def stack_database(folder: Path, report: Callable[[str], None]) -> Iterator[StackDatabase]:
    """Start a fresh PostgreSQL in `folder`; its data are gone afterwards."""
    control.reset(folder)
    workspace = Workspace.at(folder)
    workspace.make()
    options = UpOptions(parts=("postgres",), wanted_ports={"postgres": free_port()})
    plan = replace(make_plan(workspace, options, report), restarts=_RESTARTS)
    try:
        control.launch(workspace, plan)
        endpoints = control.wait_ready(workspace, plan, timeout_s=_READY_S, report=report)
        yield StackDatabase(folder=folder, dsn=str(endpoints["postgres.dsn"]))
    finally:
        control.reset(folder)


def free_port() -> int:
    """Return a port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
