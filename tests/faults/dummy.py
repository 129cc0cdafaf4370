"""Small parts for the supervisor: a script that serves, notes what happens to it, and misbehaves.

Every part writes lines `<event> <name> <pid>` to one journal that all parts of a test share.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from stack import control, status
from stack.plan import Part, Probe, Restarts, StackPlan
from stack.workspace import Workspace

QUICK = Restarts(cap=3, base_s=0.01, most_s=0.02, stable_s=30)

SCRIPT = """
import json, os, signal, socket, subprocess, sys, time
spec = json.loads(sys.argv[1])
def note(event, pid=None):
    with open(spec["journal"], "a") as file:
        file.write(f"{event} {spec['name']} {pid or os.getpid()}\\n")
def end(*_):
    time.sleep(spec["ends_after_s"])
    note("ended")
    os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if spec["stubborn"] else end)
note("started")
print(spec["says"], flush=True)
for _ in range(spec["offspring"]):
    # A grandchild in a session of its own: out of reach of signals to the group.
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"],
                             start_new_session=True)
    note("offspring", child.pid)
if spec["dies"] and not os.path.exists(spec["dies"]):
    sys.exit(7)
while spec["gate"] and not os.path.exists(spec["gate"]):
    time.sleep(0.01)
server = socket.create_server(("127.0.0.1", spec["port"]))
note("serving")
while True:
    peer = server.accept()[0]
    peer.recv(1000)
    if spec["gate"] and not os.path.exists(spec["gate"]):
        note("refused")
    good = not spec["gate"] or os.path.exists(spec["gate"])
    peer.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n" if good else b"HTTP/1.0 503 No\\r\\n\\r\\n")
    peer.close()
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """A workspace with dummy parts."""

    root: Path

    @property
    def workspace(self) -> Workspace:
        return Workspace.at(self.root)

    @property
    def journal(self) -> Path:
        return self.root / "journal"

    def part(
        self,
        name: str,
        *needs: str,
        says: str = "hello",
        stubborn: bool = False,
        offspring: int = 0,
        dies: Path | None = None,
        gate: Path | None = None,
        ends_after_s: float = 0.0,
        grace_s: float = 5.0,
        start_timeout_s: float = 20.0,
        hung_after_s: float | None = None,
        silent_after_s: float | None = None,
    ) -> Part:
        """Describe a part. It dies while the file `dies` is absent, serves while `gate` exists."""
        port = free_port()
        spec = {
            "name": name,
            "journal": str(self.journal),
            "says": says,
            "stubborn": stubborn,
            "offspring": offspring,
            "dies": dies and str(dies),
            "gate": gate and str(gate),
            "ends_after_s": ends_after_s,
            "port": port,
        }
        return Part(
            name=name,
            argv=(sys.executable, "-S", "-c", SCRIPT, json.dumps(spec)),
            probe=Probe(kind="http", port=port, limit_s=0.5),
            needs=needs,
            grace_s=grace_s,
            start_timeout_s=start_timeout_s,
            hung_after_s=hung_after_s,
            silent_after_s=silent_after_s,
        )

    def launch(self, *parts: Part, log_bytes: int = 1_000_000) -> StackPlan:
        plan = StackPlan(parts=parts, restarts=QUICK, log_bytes=log_bytes, health_pause_s=0.05)
        control.launch(self.workspace, plan)
        return plan

    def up(self, *parts: Part, log_bytes: int = 1_000_000) -> StackPlan:
        plan = self.launch(*parts, log_bytes=log_bytes)
        control.wait_ready(self.workspace, plan, timeout_s=30)
        return plan

    def states(self) -> dict[str, dict[str, object]]:
        return {str(part["name"]): part for part in status.parts(self.root)}

    def events(self) -> list[tuple[str, str]]:
        """Return (event, part) in order."""
        return [(event, name) for event, name, _ in self._lines()]

    def pids(self, *events: str) -> set[int]:
        """Return the processes that the journal tells of, for these events."""
        return {int(pid) for event, _, pid in self._lines() if event in events}

    def living(self) -> set[int]:
        """Return which of all processes that ever were in the journal are alive."""
        return {pid for pid in self.pids("started", "offspring") if alive(pid)}

    def _lines(self) -> list[list[str]]:
        if not self.journal.exists():
            return []
        return [line.split() for line in self.journal.read_text().splitlines()]


@contextmanager
def bench(root: Path) -> Iterator[Bench]:
    """Give a bench and stop whatever still runs on it."""
    root.mkdir(parents=True, exist_ok=True)
    made = Bench(root)
    made.workspace.make()
    try:
        yield made
    finally:
        control.down(root)
        for pid in made.living():
            psutil.Process(pid).kill()


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
