"""The demo's own workspace: made anew for each run, with what a user's workspace has."""

from __future__ import annotations

import shutil
from pathlib import Path

from kernel.errors import Conflict
from stack import control

MARKER = ".penstock-demo"
EXAMPLE = Path(__file__).resolve().parent
_SETTINGS = """\
# Made by `penstock demo`; a second run begins with an empty folder.
[workspace]
name = "demo"

[schemas]
mode = "strict"
"""


def prepare(folder: Path) -> Path:
    """Empty the demo's folder, stop what a kept run left in it, and fill it with the example.

    Raises `Conflict` for a folder with content that is not a demo's.
    """
    folder = folder.resolve()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise Conflict(
                f"{folder} has content that is not the demo's",
                remedy="Give it a folder of its own: penstock demo --workspace DIR",
            )
        control.reset(folder)
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).touch()
    (folder / "penstock.toml").write_text(_SETTINGS)
    for name in ("schemas", "projections"):
        shutil.copytree(EXAMPLE / name, folder / name)
    return folder
