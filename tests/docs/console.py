"""Runs the console blocks of a page as a reader would type them, and compares what they print.

In a block, `$ ` begins a command, `> ` (or `>` alone) continues it, other lines are what it prints.
`…` in an expected line stands for any text, a line `…` for any lines. Where nothing is expected,
anything may be printed. Every command must succeed.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LONGEST_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command and what it should print; None where the page shows no output."""

    text: str
    expected: str | None


def commands(block: str) -> Iterator[Command]:
    """Yield the commands of a console block in order."""
    text: list[str] = []
    expected: list[str] = []
    for line in [*block.splitlines(), "$ "]:
        if line.startswith("$ "):
            if text:
                yield Command(text="\n".join(text), expected="\n".join(expected) or None)
            text, expected = [line[2:]], []
        elif (line == ">" or line.startswith("> ")) and not expected:
            text.append(line[2:])
        else:
            expected.append(line)


def run(command: Command, *, folder: Path, environment: Mapping[str, str]) -> None:
    """Run a command in bash; an `AssertionError` tells what differs from the page."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.text],
        cwd=folder,
        env=dict(environment),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    assert done.returncode == 0, f"$ {command.text}\n{done.stdout}{done.stderr}"
    if command.expected is not None:
        assert matches(command.expected, done.stdout), (
            f"$ {command.text}\nthe page shows:\n{command.expected}\nprinted was:\n{done.stdout}"
        )


def matches(expected: str, printed: str) -> bool:
    """Compare what a page shows with what was printed, ends of lines and of text aside."""
    pattern = ".*".join(re.escape(part) for part in _trimmed(expected).split("…"))
    return re.fullmatch(pattern, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
