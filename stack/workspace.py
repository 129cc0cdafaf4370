"""The files of the stack in a workspace: `.penstock/` and what lies in it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from kernel.errors import Misconfigured
from stack.plan import StackPlan, write_atomically

_POLL_S = 0.05
_CLAIM_S = 1.0
_RELEASE_S = 25.0


class Claim:
    """The supervisor's lock, held for as long as the file is open in any process."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def owned_by(self, pid: int) -> None:
        """Write down which process the supervisor is."""
        self._file.truncate(0)
        self._file.write(str(pid))
        self._file.flush()

    def release(self) -> None:
        """Let go of the lock in this process."""
        self._file.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """One workspace's folder `.penstock`, which belongs to the stack alone."""

    root: Path

    @staticmethod
    def at(path: Path) -> Workspace:
        """Name the workspace at `path`; nothing is made yet."""
        return Workspace(root=path.expanduser().resolve())

    @property
    def folder(self) -> Path:
        """`.penstock`."""
        return self.root / ".penstock"

    @property
    def plan_file(self) -> Path:
        """What the supervisor carries out. Private: it holds passwords."""
        return self.folder / "plan.json"

    @property
    def state_file(self) -> Path:
        """What the supervisor says of its parts."""
        return self.folder / "state.json"

    @property
    def endpoints_file(self) -> Path:
        """Where a running stack is reached."""
        return self.folder / "endpoints.json"

    @property
    def logs(self) -> Path:
        """One log per part, and the supervisor's."""
        return self.folder / "logs"

    @property
    def run(self) -> Path:
        """Locks and process ids."""
        return self.folder / "run"

    @property
    def token(self) -> str:
        """A short name for this folder, the same every time."""
        return hashlib.sha256(os.fsencode(self.root)).hexdigest()[:12]

    def make(self) -> None:
        """Make the folders. Raises `Misconfigured` where that is not possible."""
        complaint = path_complaint(self.root)
        if complaint is not None:
            raise Misconfigured(
                complaint, remedy="Choose another folder: penstock up --workspace DIR"
            )
        try:
            for folder in (self.folder, self.logs, self.run):
                folder.mkdir(parents=True, exist_ok=True)
            self._command_lock.touch()
        except OSError as error:
            whose = owner_if_another(self.folder)
            told = "" if whose is None else f"; {self.folder} is that of {whose}"
            work = "" if whose is None else f"Work as {whose}, or: "
            raise Misconfigured(
                f"the workspace {self.root} cannot be written: {error.strerror}{told}",
                remedy=f"{work}Choose a folder that you may write: penstock up --workspace DIR",
            ) from error

    def read_plan(self) -> StackPlan:
        """Return the plan of the present or last run. Raises `Misconfigured` for none."""
        try:
            return StackPlan.from_json(self.plan_file.read_text())
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise Misconfigured(
                f"the plan of the stack, {self.plan_file}, is gone or damaged",
                remedy="Stop what runs, and start it anew: penstock down && penstock up",
            ) from error

    def write_plan(self, plan: StackPlan) -> None:
        """Store the plan for the supervisor."""
        write_atomically(self.plan_file, plan.to_json(), mode=0o600)

    def write_endpoints(self, endpoints: Mapping[str, str | int]) -> None:
        """Tell others where the stack is reached. Private: it holds a password."""
        write_atomically(self.endpoints_file, json.dumps(endpoints, indent=1), mode=0o600)

    def log_of(self, part: str) -> Path:
        """Return a part's log file."""
        return self.logs / f"{part}.log"

    def pid_file(self, part: str) -> Path:
        """Return where a part's shim writes down which process the part is."""
        return self.run / f"{part}.pid"

    def pid_of(self, part: str) -> int | None:
        """Return the process id of a part, as its shim wrote it down; None where it did not."""
        try:
            return int(json.loads(self.pid_file(part).read_text())["pid"])
        except (OSError, ValueError, KeyError):
            return None

    def kill(self, part: str) -> None:
        """Kill the processes of a part whose shim is gone."""
        if (pid := self.pid_of(part)) is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def supervisor_pid(self) -> int | None:
        """Return the process id of a running supervisor, by its lock and not by its number."""
        try:
            file = (self.run / "supervisor.lock").open()
        except (FileNotFoundError, NotADirectoryError):
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                text = file.read().strip()
                return int(text) if text else None
        return None

    def claim(self) -> Claim | None:
        """Take the supervisor's lock; None when another one has it."""
        file = (self.run / "supervisor.lock").open("a+")
        limit = time.monotonic() + _CLAIM_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # Someone who only looks holds it for a moment.
                if time.monotonic() > limit:
                    file.close()
                    return None
                time.sleep(_POLL_S)
        claim = Claim(file)
        claim.owned_by(os.getpid())
        return claim

    def await_release(self, *, report: Callable[[str], None] | None = None) -> None:
        """Wait until parts of a supervisor that was killed have wound down; kill what does not."""
        limit = time.monotonic() + _RELEASE_S
        for lock in sorted(self.run.glob("*.lock")):
            if lock.stem in ("supervisor", "command"):
                continue
            while _held(lock):
                if report is not None:
                    report(f"{lock.stem}: waiting for an earlier process to end")
                    report = None
                if time.monotonic() > limit:
                    self.kill(lock.stem)
                time.sleep(_POLL_S)

    @contextmanager
    def one_at_a_time(self, *, report: Callable[[str], None] | None = None) -> Iterator[None]:
        """Keep two commands from changing the stack at once: the second waits, and says so."""
        with self._command_lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if report is not None:
                    report("waiting for another command that changes this stack")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def being_changed(self) -> bool:
        """Return whether a command is about to start or change the stack at this moment."""
        return self._command_lock.exists() and _held(self._command_lock)

    @property
    def _command_lock(self) -> Path:
        return self.run / "command.lock"


def path_complaint(path: Path) -> str | None:
    """Say what in a path the parts' configuration files cannot carry; None when all is well.

    Spaces and letters of any script are fine; commas separate Kafka's lists of folders.
    """
    found = [character for character in ',"\\\n\r' if character in str(path)]
    return f"the path {str(path)!r} contains {found[0]!r}" if found else None


def owner_if_another(path: Path) -> str | None:
    """Return the name of the user whose file this is; None where it is ours, or is not there."""
    try:
        status = path.stat()
        if status.st_uid == os.geteuid():
            return None
        return pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return f"user {status.st_uid}"
    except OSError:
        return None


def _held(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
