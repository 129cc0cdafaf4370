"""One part as the supervisor sees it: its process, its state, its last words."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from stack.logs import last_words
from stack.plan import Part
from stack.shim import EXIT_LOCKED
from stack.workspace import Workspace

_SHIM = Path(__file__).with_name("shim.py")
_REAP_S = 10.0
WAITS = "waits for "
"""What the reason of a part begins with that waits for another one."""


class Running:
    """A part with its shim. `ready` is set while it serves; `changed` wakes at every new state.

    `ended` says why it ended the last time, `ended_at` when.
    """

    def __init__(self, part: Part, workspace: Workspace, log_bytes: int) -> None:
        self.part = part
        self.workspace = workspace
        self.log_bytes = log_bytes
        self.state = "waiting"
        self.reason: str | None = None
        self.since = datetime.now(UTC)
        self.restarts = 0
        self.deaths = 0
        self.ended: str | None = None
        self.ended_at: str | None = None
        self.ready = asyncio.Event()
        self.changed = asyncio.Event()
        self._ready_at: float | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._pipe: int | None = None

    def alive(self) -> bool:
        """Return whether the shim runs, and with it the part."""
        return self._process is not None and self._process.returncode is None

    def become(self, state: str, reason: str | None) -> None:
        """Take a new state and wake those who wait for a change."""
        self.state, self.reason, self.since = state, reason, datetime.now(UTC)
        self.changed.set()
        self.changed = asyncio.Event()

    def ready_now(self) -> None:
        """Note the moment of readiness."""
        self._ready_at = time.monotonic()
        self.ready.set()

    def died(self, reason: str) -> None:
        """Note why and when it ended: whoever sees that it was started again wants to know."""
        self.ended, self.ended_at = reason, datetime.now(UTC).isoformat(timespec="seconds")

    def ready_for_s(self) -> float:
        """Return for how many seconds it served in its last life."""
        return 0.0 if self._ready_at is None else time.monotonic() - self._ready_at

    async def prepare(self) -> str | None:
        """Run the steps whose results are not there yet. Return the complaint of one that fails."""
        for step in self.part.steps:
            if Path(step.creates).exists():
                continue
            process = await asyncio.create_subprocess_exec(
                *step.argv,
                env={**os.environ, **self.part.env},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                output, _ = await process.communicate()
            except asyncio.CancelledError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
                raise
            with self.workspace.log_of(self.part.name).open("ab") as log:
                log.write(output)
            if process.returncode:
                return f"{Path(step.argv[0]).name} exited with {process.returncode}: {self._tail()}"
        return None

    async def start(self) -> None:
        """Start the part beneath a shim that holds the read end of a new pipe."""
        self._ready_at = None
        self.workspace.pid_file(self.part.name).unlink(missing_ok=True)
        control, self._pipe = os.pipe2(os.O_CLOEXEC)
        spec = {
            "argv": self.part.argv,
            "control": control,
            "cwd": self.part.cwd or str(self.workspace.root),
            "grace_s": self.part.grace_s,
            "stop_signal": self.part.stop_signal,
            "uid": self.part.uid,
            "gid": self.part.gid,
            "niceness": self.part.niceness,
            "lock": str(self.workspace.run / f"{self.part.name}.lock"),
            "pidfile": str(self.workspace.pid_file(self.part.name)),
            "log": str(self.workspace.log_of(self.part.name)),
            "log_bytes": self.log_bytes,
        }
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", str(_SHIM), json.dumps(spec)),
                env={**os.environ, **self.part.env},
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(control,),
            )
        finally:
            os.close(control)

    async def wait(self) -> int:
        """Wait for the part's end; return its exit status."""
        assert self._process is not None
        code = await self._process.wait()
        self._close_pipe()
        # A shim that was killed cannot have stopped its child.
        if code < 0:
            self.workspace.kill(self.part.name)
        self.workspace.pid_file(self.part.name).unlink(missing_ok=True)
        return code

    async def stop(self) -> None:
        """Let go of the pipe, which makes the shim end its child; return when all is gone."""
        self._close_pipe()
        if self._process is None:
            return
        try:
            async with asyncio.timeout(self.part.grace_s + _REAP_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._process.returncode and self._process.returncode < 0:
            self.workspace.kill(self.part.name)
        self.workspace.pid_file(self.part.name).unlink(missing_ok=True)

    def pid(self) -> int | None:
        """Return the part's own process id while it runs."""
        return self.workspace.pid_of(self.part.name) if self.alive() else None

    def last_words(self, code: int) -> str:
        """Say how it ended, with the last lines of its log."""
        if code == EXIT_LOCKED:
            return f"{self.part.name}: an earlier process of this part still runs"
        how = f"signal {_signal_name(code - 128)}" if code > 128 else f"exit status {code}"
        return f"{how}; last lines: {self._tail()}"

    def describe(self) -> dict[str, object]:
        """Return what `status` shows."""
        return {
            "state": self.state,
            "pid": self.pid(),
            "port": self.part.port,
            "version": self.part.version,
            "restarts": self.restarts,
            "reason": self.reason,
            "ended": self.ended,
            "ended_at": self.ended_at,
            "since": self.since.isoformat(),
            "needs": list(self.part.needs),
        }

    def _tail(self) -> str:
        return last_words(self.workspace.log_of(self.part.name))

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
