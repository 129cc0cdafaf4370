"""The engines that answer Nexmark's queries: each a process that prints a line for each query."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.install import default_cache, environment
from kernel.errors import Unavailable

_ROOT = Path(__file__).parents[2]
_PEERS = _ROOT / "benchmarks" / "peers"
_TIMEOUT_S = 1_800.0
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What one query took. `rows` are those of the result; None where nobody counted them."""

    query: str
    seconds: float
    cpu_seconds: float
    rows: float | None


def answers(engine: str, folder: Path, wanted: Sequence[str], say: Say) -> Iterator[Answered]:
    """Let an engine answer those of the wanted queries that it can, and yield what each took.

    Raises `Unavailable` when its process fails, with the end of what it said.
    """
    if engine == "penstock":
        command = [sys.executable, "-m", "benchmarks.nexmark.catching_up", str(folder)]
        yield from _told([*command, wanted[0], *wanted])[1:]
        return
    name, _, kept = engine.partition("_")
    python = environment(default_cache(), f"nexmark_{name}.txt", say)
    sink = str(folder / engine) if kept else "nothing"
    command = [str(python), str(_PEERS / f"drive_{name}.py"), str(folder / "lines"), sink]
    queries = [query for query in _said(command).split() if query in wanted]
    if name == "pathway":
        for query in queries:
            yield from _told([*command, query])
    elif queries:
        yield from _told([*command, queries[0], *queries])[1:]


def _told(command: Sequence[str]) -> list[Answered]:
    lines = [line for line in _said(command).splitlines() if line.startswith("{")]
    return [
        Answered(
            query=told["query"],
            seconds=told["s"],
            cpu_seconds=told["cpu_s"],
            rows=told.get("rows"),
        )
        for told in map(json.loads, lines)
    ]


def _said(command: Sequence[str]) -> str:
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=_TIMEOUT_S,
        env=os.environ | {"PYTHONPATH": str(_ROOT)} if command[0] == sys.executable else None,
    )
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip()[-2_000:]
        raise Unavailable(f"{' '.join(command[1:3])} failed: {said}")
    return ended.stdout
