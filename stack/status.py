"""What a workspace's stack says of itself: states, processes, logs, and memory when asked for.

It reads the supervisor's files and imports nothing that starts a stack: `penstock status` is asked
often, and should cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel.errors import NotFound
from stack.plan import document_of
from stack.workspace import Workspace


def status(path: Path, *, memory: bool = False) -> dict[str, object]:
    """Return what runs: the supervisor and each part with state, pid, port and version.

    `killed`: nothing runs, and nobody stopped it in order.

    With `memory` also the megabytes that each part's processes hold, which costs more than all the
    rest; None without.
    """
    workspace = Workspace.at(path)
    supervisor = workspace.supervisor_pid()
    found = _parts(workspace, supervised=supervisor is not None)
    held = _memory_mb(found) if memory else {}
    ready = bool(found) and all(part["state"] == "ready" for part in found)
    left = [part["state"] for part in states_of(workspace).values()]
    return {
        "workspace": str(workspace.root),
        "supervisor": supervisor,
        "state": ("ready" if ready else "unready") if supervisor else "stopped",
        # Who ends in order says of each part that it is stopped.
        "killed": supervisor is None and any(state != "stopped" for state in left),
        "memory_mb": sum(held.values()) if memory else None,
        "parts": [{**part, "memory_mb": held.get(str(part["name"]))} for part in found],
    }


def parts(path: Path) -> list[dict[str, object]]:
    """Return each part with name, state, pid, port and version."""
    workspace = Workspace.at(path)
    return _parts(workspace, supervised=workspace.supervisor_pid() is not None)


def _parts(workspace: Workspace, *, supervised: bool) -> list[dict[str, object]]:
    found = []
    for name, part in states_of(workspace).items():
        pid = workspace.pid_of(name) if supervised else None
        state = part["state"] if supervised else "stopped"
        # A process that has just died is gone before its supervisor has noticed it.
        state = "unready" if state == "ready" and pid is None else state
        found.append({"name": name, **part, "state": state, "pid": pid})
    return found


def log_files(path: Path, part: str | None) -> list[Path]:
    """Return the log of one part, or all logs. Raises `NotFound` for an unknown part."""
    workspace = Workspace.at(path)
    found = sorted(workspace.logs.glob("*.log"))
    if part is None:
        return found
    if workspace.log_of(part) not in found:
        raise NotFound(
            f"no log of {part!r} in {workspace.logs}; there are: "
            + (", ".join(file.stem for file in found) or "none"),
            remedy="Name one of them, or none for all; logs come with the stack: penstock up",
        )
    return [workspace.log_of(part)]


def states_of(workspace: Workspace, since: int = 0) -> dict[str, dict[str, object]]:
    """Return what the supervisor says of its parts; nothing before it has read plan `since`."""
    document = document_of(workspace.state_file)
    parts: dict[str, dict[str, object]] = document.get("parts", {})
    return {} if document.get("plan", 0) < since else parts


def _memory_mb(parts_now: Sequence[Mapping[str, object]]) -> dict[str, int]:
    # Only a caller who asks for memory pays for psutil.
    from stack.memory import resident_mb

    return {
        str(part["name"]): resident_mb(int(str(part["pid"])))
        for part in parts_now
        if part["pid"] is not None
    }
