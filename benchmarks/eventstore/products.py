"""What can be measured: a store that takes some of the lines' work, and how its driver is run."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from benchmarks.eventstore.lines import Line, Scale
from benchmarks.eventstore.seed import data_text
from benchmarks.harness import Figures
from benchmarks.peers.closed_loop import Work
from kernel.errors import Unavailable

ROOT = Path(__file__).resolve().parents[2]
_SLACK_S = 300.0


class Product(Protocol):
    """A store with its way in. `guarantee` says what its order and durability are worth."""

    name: str
    guarantee: str

    def fresh(self) -> AbstractContextManager[None]:
        """Open an empty store (or the one that was filled for this product), and close it."""
        ...

    def takes(self, line: Line) -> bool:
        """Return whether it can do that work at all."""
        ...

    def measure(self, line: Line, scale: Scale) -> Figures:
        """Do a line's work, in a driver process of its own, and return the driver's figures."""
        ...

    @property
    def servers(self) -> Sequence[int]:
        """Processes that serve, PostgreSQL and the driver left out."""
        ...


def work_of(line: Line, scale: Scale, address: str) -> Work:
    """Return what a driver is asked to do for a line."""
    return Work(
        line=line.kind,
        address=address,
        data=data_text(),
        clients=line.clients,
        batch=line.batch,
        rate=line.rate,
        seconds=scale.seconds,
        warm_s=scale.warm_s,
    )


def drive(
    command: Sequence[str | Path], work: Work, environment: Mapping[str, str] | None = None
) -> Figures:
    """Run a driver and return its figures. Raises `Unavailable` with what it last said."""
    try:
        ended = subprocess.run(
            [*command, json.dumps(asdict(work))],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=environment,
            timeout=work.seconds + work.warm_s + _SLACK_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[-1]} did not end in time") from error
    if ended.returncode != 0:
        said = (ended.stderr or ended.stdout).strip().splitlines() or ["nothing"]
        raise Unavailable(
            f"{command[-1]} ended with {ended.returncode} at {work.line}: {said[-1]}",
            remedy="Run it alone with --products and --lines, and read what it prints.",
        )
    figures: dict[str, float] = json.loads(ended.stdout.strip().splitlines()[-1])
    return figures
