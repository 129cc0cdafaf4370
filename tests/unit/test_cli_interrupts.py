"""Ctrl-C ends a command at any moment with the exit code for it, and without a traceback."""

from __future__ import annotations

import subprocess
import sys

import pytest

from apps.cli import was_interrupted

_INTERRUPTED = 130
_CALL = """
import sys

class Interrupting:
    # Presses Ctrl-C while a module is looked for, as somebody would while the command loads.
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from apps.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "apps.cli.groups", "kernel.errors", "apps.cli.stream"])
def test_ctrl_c_while_a_command_loads_is_no_traceback(module: str) -> None:
    call = [sys.executable, "-c", _CALL.format(module=module), "stream", "list"]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (_INTERRUPTED, "", "")


def test_ctrl_c_is_known_where_code_in_c_made_another_error_of_it() -> None:
    error = ImportError("numpy.core.multiarray failed to import")
    assert not was_interrupted(error)
    error.__context__ = KeyboardInterrupt()
    assert was_interrupted(error)
