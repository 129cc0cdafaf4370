"""The options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apps import settings
from kernel.errors import NotFound


def _existing(workspace: Path | None) -> Path | None:
    """Refuse a workspace that does not exist: a command that looks into it would find nothing."""
    root = settings.root_of(workspace)
    if not root.is_dir():
        raise NotFound(
            f"there is no folder {root}",
            remedy="Name the workspace: -w DIR. Or make one there: penstock up -w DIR",
        )
    return workspace


WorkspaceOption = Annotated[
    Path | None,
    typer.Option(
        "--workspace",
        "-w",
        help="The workspace (default: this folder).",
        callback=_existing,
    ),
]
NewWorkspaceOption = Annotated[
    Path | None, typer.Option("--workspace", "-w", help="The workspace (default: this folder).")
]
"""Of commands that make a workspace, or say whether one could be made."""
JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
