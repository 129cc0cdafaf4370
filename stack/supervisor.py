"""The supervisor: starts parts in order, keeps them up, stops them in order, leaves no orphan.

`python -m stack.supervisor WORKSPACE` detaches one, which carries out the workspace's plan until
SIGTERM or SIGINT. SIGUSR1 makes it read the plan again: new parts are started, failed ones tried
once more, those of a greater generation stopped and started. What it knows is in `state.json`,
replaced whole at every change.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from stack.plan import Part, StackPlan, in_order, write_atomically
from stack.probes import serves
from stack.running_part import WAITS, Running
from stack.workspace import Workspace

_PROBE_PAUSE_S = 0.1
_HEALTH_STRIKES = 3
_STEPS = 2
"""Between two answers passes a pause and a probe; what is longer than so many was not watched."""
EXIT_CLAIMED = 4
"""Another supervisor has the workspace."""


class Supervisor:
    """Carries out one plan in one workspace. Runs inside one event loop."""

    def __init__(self, workspace: Workspace, *, on_change: Callable[[Running], None] | None = None):
        self.workspace = workspace
        self.on_change = on_change
        self.plan: StackPlan = workspace.read_plan()
        self.parts: dict[str, Running] = {}
        self.keepers: dict[str, asyncio.Task[None]] = {}
        self.stopping = asyncio.Event()
        self.started_at = datetime.now(UTC)

    async def run(self) -> None:
        """Start everything, stay until told to stop, stop everything."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGUSR1, self.reload)
        self.reload()
        await self.stopping.wait()
        await self._stop_all()
        self.workspace.endpoints_file.unlink(missing_ok=True)
        self._publish()

    def reload(self) -> None:
        """Take up the plan as it is on disk now.

        Parts that run are left alone, unless the plan has them in a greater generation.
        """
        if self.stopping.is_set():
            return
        self.plan = self.workspace.read_plan()
        self.workspace.write_endpoints(self.plan.endpoints)
        for part in in_order(self.plan.parts):
            running = self.parts.get(part.name)
            if running is None or running.state == "failed":
                self._replace(part)
                self.keepers[part.name] = asyncio.create_task(self._keep(part.name))
            elif running.part.generation < part.generation:
                keeper = self.keepers[part.name]
                # At once: whoever waits for readiness must not see that of the old process.
                running.ready.clear()
                self._set(running, "stopping", None)
                self.keepers[part.name] = asyncio.create_task(self._again(part, running, keeper))
        self._publish()

    async def _again(self, part: Part, running: Running, keeper: asyncio.Task[None]) -> None:
        """Stop a part in order, then keep its new definition running."""
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await self._stop(running)
        self._replace(part)
        await self._keep(part.name)

    def _replace(self, part: Part) -> None:
        """Put a fresh object in a part's place, and wake those who wait for the one before."""
        before = self.parts.get(part.name)
        self.parts[part.name] = Running(part, self.workspace, self.plan.log_bytes)
        if before is not None:
            before.changed.set()

    async def _keep(self, name: str) -> None:
        """Keep one part running: start, wait for readiness, watch, restart with back-off."""
        running = self.parts[name]
        try:
            while True:
                await self._needs_ready(running)
                reason = await self._tried(running)
                running.died(reason)
                if running.ready_for_s() >= self.plan.restarts.stable_s:
                    running.deaths = 0
                running.deaths += 1
                if running.deaths > self.plan.restarts.cap:
                    self._set(running, "failed", reason)
                    return
                running.restarts += 1
                self._set(running, "waiting", reason)
                await asyncio.sleep(self.plan.restarts.pause_s(running.deaths))
        except Exception as error:  # A bug here must show as this part's reason, not vanish.
            await running.stop()
            self._set(running, "failed", f"supervisor: {error!r}")
            raise

    async def _tried(self, running: Running) -> str:
        """Run the part once; a machine that cannot start it just now is a death like another."""
        try:
            return await self._once(running)
        except OSError as error:
            await running.stop()
            return f"cannot be run: {error}"

    async def _needs_ready(self, running: Running) -> None:
        for name in running.part.needs:
            # Looked up each time: a failed part that is tried again is a new object.
            while not self.parts[name].ready.is_set():
                need = self.parts[name]
                self._set(running, "waiting", f"{WAITS}{name}, which is {need.state}")
                await need.changed.wait()

    async def _once(self, running: Running) -> str:
        """Run the part once, from start to death. Return why it died."""
        self._set(running, "starting", None)
        refused = await running.prepare()
        if refused is not None:
            return refused
        await running.start()
        died = asyncio.create_task(running.wait())
        try:
            late = await self._until_ready(running, died)
            if late is None and not died.done():
                late = await self._watch(running, died)
            if late is not None:
                await running.stop()
            code = await died
        finally:
            died.cancel()
            running.ready.clear()
        return late or running.last_words(code)

    async def _until_ready(self, running: Running, died: asyncio.Task[int]) -> str | None:
        """Wait for the first good answer. Return the complaint when it takes too long."""
        part = running.part
        limit = asyncio.get_running_loop().time() + part.start_timeout_s
        while not died.done():
            complaint = await serves(part.probe) if part.probe else None
            if complaint is None and running.alive():
                running.ready_now()
                self._set(running, "ready", None)
                return None
            if asyncio.get_running_loop().time() > limit:
                why = None if complaint is None else complaint.text
                return f"not ready within {part.start_timeout_s:g} s: {why}"
            self._set(running, "starting", None if complaint is None else complaint.text)
            await asyncio.wait({died}, timeout=_PROBE_PAUSE_S)
        return None

    async def _watch(self, running: Running, died: asyncio.Task[int]) -> str | None:
        """Watch a ready part until it dies; say so when it stops to answer.

        Returns the complaint when it stopped for so long that it must be started again.
        """
        now, part, strikes = asyncio.get_running_loop().time, running.part, 0
        hung_s = silent_s = 0.0
        seen = now()
        while not died.done():
            await asyncio.wait({died}, timeout=self.plan.health_pause_s)
            if died.done() or part.probe is None:
                continue
            complaint = await serves(part.probe)
            # What stood still as this process did, as a machine that is paused, is not to blame.
            passed = min(now() - seen, _STEPS * (self.plan.health_pause_s + part.probe.limit_s))
            seen = now()
            if complaint is None:
                hung_s, silent_s, strikes = 0.0, 0.0, 0
                if running.state == "unready":
                    self._set(running, "ready", None)
                continue
            strikes += 1
            hung_s += passed
            silent_s = silent_s + passed if complaint.silent else 0.0
            if strikes >= _HEALTH_STRIKES:
                self._set(running, "unready", complaint.text)
                if _too_long(hung_s, part.hung_after_s):
                    return f"hung for {hung_s:.0f} s, started again: {complaint.text}"
                if _too_long(silent_s, part.silent_after_s):
                    return f"silent for {silent_s:.0f} s, started again: {complaint.text}"
        return None

    async def _stop_all(self) -> None:
        """Stop in the reverse of the order of starting, what is independent at once."""
        for keeper in self.keepers.values():
            keeper.cancel()
        await asyncio.gather(*self.keepers.values(), return_exceptions=True)
        left = dict(self.parts)
        while left:
            needed = {need for running in left.values() for need in running.part.needs}
            wave = [running for name, running in left.items() if name not in needed]
            await asyncio.gather(*(self._stop(running) for running in wave))
            for running in wave:
                del left[running.part.name]

    async def _stop(self, running: Running) -> None:
        if running.alive():
            self._set(running, "stopping", None)
        await running.stop()
        self._set(running, "stopped", None)

    def _set(self, running: Running, state: str, reason: str | None) -> None:
        if (running.state, running.reason) == (state, reason):
            return
        running.become(state, reason)
        self._publish()
        if self.on_change is not None:
            # Whoever listened may be gone; the parts are watched all the same.
            with contextlib.suppress(OSError, ValueError):
                self.on_change(running)

    def _publish(self) -> None:
        document = {
            "plan": self.plan.number,
            "supervisor": {"pid": os.getpid(), "started_at": self.started_at.isoformat()},
            "parts": {name: running.describe() for name, running in self.parts.items()},
        }
        try:
            write_atomically(self.workspace.state_file, json.dumps(document, indent=1))
        except OSError as error:
            print(f"state cannot be written: {error}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    """Detach a supervisor for the given workspace; returns when it has the workspace's lock."""
    workspace = Workspace.at(Path(arguments[0]))
    # Until its handler is there, a request to read the plan again must not kill it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    lock = workspace.claim()
    if lock is None:
        return EXIT_CLAIMED
    child = os.fork()
    if child:
        lock.owned_by(child)
        return 0
    # The lock belongs to the open file, which both processes have: it passes on to the child.
    asyncio.run(_supervise(workspace))
    lock.release()
    return 0


async def _supervise(workspace: Workspace) -> None:
    await Supervisor(workspace).run()


def _too_long(passed_s: float, bound_s: float | None) -> bool:
    return bound_s is not None and passed_s >= bound_s


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
