"""Runs `penstock` commands as a user would, in this process: same parser, same answers.

A process of its own for each would cost a second of imports every time.
"""

from __future__ import annotations

import io
import re
import shlex
import threading
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import orjson
import typer

from apps.cli import build
from apps.cli.usage import WrongUsage, told
from examples.flights.narration import Narration
from kernel.errors import InvalidRequest

_PASSWORD = re.compile(r"(password=)\S+")
_lock = threading.Lock()


class Penstock:
    """The command line, bound to one workspace."""

    def __init__(self, workspace: Path, narration: Narration) -> None:
        self._workspace = workspace
        self._narration = narration
        self._command = typer.main.get_command(build())

    def __call__(self, *words: str, accept: tuple[int, ...] = (0,)) -> Any:
        """Run one command with `--json` and return its document; None when it says nothing.

        Shows the command as a user would type it. Raises what the command raises, and
        `InvalidRequest` for an exit code that is not accepted.
        """
        self._narration.command(self._shown(words))
        arguments = [*words, "--json", "--workspace", str(self._workspace)]
        said = io.StringIO()
        # Standard output is one for the whole process.
        with _lock, redirect_stdout(said):
            code = self._run(arguments)
        if code not in accept:
            raise InvalidRequest(
                f"penstock {shlex.join(words)} ended with exit code {code}: "
                f"{said.getvalue().strip()[-500:]}",
                remedy="Run it by hand in the demo's workspace; penstock logs tells more.",
            )
        text = said.getvalue().strip()
        return orjson.loads(text) if text else None

    def _shown(self, words: tuple[str, ...]) -> str:
        """Return what a user would type in the workspace, without the password."""
        inside = f"{self._workspace}/"
        return _PASSWORD.sub(r"\1***", shlex.join(("penstock", *words)).replace(inside, ""))

    def _run(self, arguments: list[str]) -> int:
        try:
            answer = self._command.main(arguments, prog_name="penstock", standalone_mode=False)
        except WrongUsage as error:
            raise told(error) from error
        return answer if isinstance(answer, int) else 0
