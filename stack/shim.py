"""Runs beneath the supervisor, one per part: makes sure that the part never outlives it.

Started as a script (standard library only, so that it is small): `shim.py SPEC`, SPEC being JSON.
It holds the read end of a pipe whose only write end is the supervisor's. When the pipe closes,
because the supervisor says stop or because it died in whatever way, the shim asks its child to
end, waits, and kills what is left of the child's descendants. Parent-death signals do not do: they
are lost on a change of user and do not reach grandchildren.

It also keeps the part's log within bounds and holds the part's lock, so that a new supervisor
cannot start a part whose old processes still wind down.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

_PR_SET_CHILD_SUBREAPER = 36
_LOCK_WAIT_S = 30.0
_LOG_LOOK_S = 1.0
_STEPS, _STEPS_AGAIN_S = 10, 0.11
"""Linux lets a user set the priority of one session in a tenth of a second."""
EXIT_LOCKED = 75
EXIT_NOT_STARTED = 127


class Log:
    """A file of at most `limit` bytes and its predecessor. A full disk loses lines only."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.file = _open_log(path)
        self.size = os.fstat(self.file.fileno()).st_size
        self.looked = time.monotonic()

    def write(self, data: bytes) -> None:
        """Append, starting a new file when this one is full."""
        try:
            full = self.size + len(data) > self.limit
            if full or not self._is_there():
                self._begin_anew(rotate=full)
            self.size += self.file.write(data) or 0
        except OSError:
            return

    def _is_there(self) -> bool:
        """Whether the file is the one of its name: somebody may have removed it."""
        now = time.monotonic()
        if now - self.looked < _LOG_LOOK_S:
            return True
        self.looked = now
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except OSError:
            return False

    def _begin_anew(self, *, rotate: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            if rotate:
                os.replace(self.path, self.path + ".1")
        before, self.file = self.file, _open_log(self.path)
        before.close()
        self.size = os.fstat(self.file.fileno()).st_size


class Shim:
    """The child, its log, and the pipe to the supervisor."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.control: int = spec["control"]
        os.set_inheritable(self.control, False)
        self.log = Log(spec["log"], spec["log_bytes"])
        self.deadline: float | None = None
        self.wake, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.begin_stop())
        self.child: subprocess.Popen[bytes] | None = None
        self.status: int | None = None

    def run(self) -> int:
        """Run the child to its end; return its exit status as a shell would show it."""
        _become_subreaper()
        guard = os.open(self.spec["lock"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not self._locked(guard):
            self._say("an earlier process of this part still runs")
            return EXIT_LOCKED
        output, child_output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(output, False)
        # Before there is a child: threads that it starts at once inherit it too.
        os.nice(self.spec["niceness"])
        try:
            # The child inherits the lock as well: should this shim be killed, the part counts as
            # running for as long as the child does.
            self.child = subprocess.Popen(
                self.spec["argv"],
                stdin=subprocess.DEVNULL,
                stdout=child_output,
                stderr=child_output,
                cwd=self.spec["cwd"],
                start_new_session=True,
                pass_fds=(guard,),
                user=self.spec["uid"],
                group=self.spec["gid"],
                extra_groups=[] if self.spec["uid"] is not None else None,
            )
        except OSError as error:
            self._say(f"cannot start {self.spec['argv'][0]}: {error}")
            return EXIT_NOT_STARTED
        os.close(child_output)
        _step_back(self.child.pid, self.spec["niceness"])
        self._write_pid(self.child.pid)
        self._watch(self.child.pid, output)
        self._sweep(self.child.pid)
        self._drain(output)
        status = self.status or 0
        return status if status >= 0 else 128 - status

    def begin_stop(self) -> None:
        """Ask the child to end, and note when patience ends."""
        if self.deadline is None:
            self.deadline = time.monotonic() + self.spec["grace_s"]
            if self.child is not None and self.status is None:
                # The child alone: one that runs servers of its own (Spark's JVM) wants to use them
                # to the last.
                _signal_one(self.child.pid, getattr(signal, self.spec["stop_signal"]))

    def _watch(self, pid: int, output: int) -> None:
        poller = select.poll()
        poller.register(self.control, select.POLLIN | select.POLLHUP)
        poller.register(output, select.POLLIN)
        poller.register(self.wake, select.POLLIN)
        while self.status is None:
            left = None if self.deadline is None else self.deadline - time.monotonic()
            if left is not None and left <= 0:
                _signal_group(pid, signal.SIGKILL)
                left = 1.0
            ready = {fd for fd, _ in poller.poll(None if left is None else left * 1000)}
            if self.control in ready:
                poller.unregister(self.control)
                self.begin_stop()
            if output in ready and not self._drain(output):
                poller.unregister(output)
            if self.wake in ready:
                os.read(self.wake, 512)
            self._reap(pid)

    def _reap(self, pid: int) -> bool:
        """Collect the dead, adopted ones too. Return whether any process is left."""
        while True:
            try:
                dead, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if dead == 0:
                return True
            if dead == pid:
                self.status = os.waitstatus_to_exitcode(status)

    def _sweep(self, pid: int) -> None:
        """Kill what the child left behind: its group, and whatever was orphaned to us."""
        _signal_group(pid, signal.SIGKILL)
        give_up = time.monotonic() + 5.0
        while self._reap(pid) and time.monotonic() < give_up:
            for orphan in _children(os.getpid()):
                _signal_one(orphan, signal.SIGKILL)
            time.sleep(0.01)

    def _drain(self, output: int) -> bool:
        """Move what the child printed to the log. Return whether more may come."""
        while True:
            try:
                data = os.read(output, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.log.write(data)

    def _locked(self, guard: int) -> bool:
        give_up = time.monotonic() + _LOCK_WAIT_S
        while time.monotonic() < give_up:
            try:
                fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if select.select([self.control], [], [], 0.1)[0]:
                    return False
            else:
                return True
        return False

    def _write_pid(self, pid: int) -> None:
        fresh = self.spec["pidfile"] + ".new"
        try:
            with open(fresh, "w") as file:
                json.dump({"pid": pid, "shim": os.getpid()}, file)
            os.replace(fresh, self.spec["pidfile"])
        except OSError as error:
            self._say(f"the process id cannot be written: {error}")

    def _say(self, line: str) -> None:
        self.log.write(f"penstock: {line}\n".encode())


def _open_log(path: str) -> io.FileIO:
    try:
        return io.FileIO(path, "a")
    except OSError:
        return io.FileIO(os.devnull, "a")


def _step_back(pid: int, niceness: int) -> None:
    """Give a session its priority. Where Linux shares processors between sessions first
    (`sched_autogroup_enabled`), the niceness of a process counts within its session alone.
    """
    for _ in range(_STEPS if niceness else 0):
        try:
            with open(f"/proc/{pid}/autogroup", "w") as group:
                group.write(str(niceness))
        except BlockingIOError:
            time.sleep(_STEPS_AGAIN_S)
        except OSError:
            return  # There are no such groups here, or the child has ended.
        else:
            return


def _become_subreaper() -> None:
    """Have orphaned grandchildren handed to us instead of to init, where the system can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _signal_one(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _children(parent: int) -> list[int]:
    try:
        with open(f"/proc/{parent}/task/{parent}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(Shim(json.loads(sys.argv[1])).run())
