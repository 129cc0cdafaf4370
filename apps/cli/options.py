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
Files = Annotated[list[Path], typer.Argument(metavar="FILE.sql", help="SQL files, read together.")]
ProjectionName = Annotated[str, typer.Argument(metavar="NAME", help="The projection.")]
SourceName = Annotated[str, typer.Argument(metavar="NAME", help="The source's name.")]
StreamName = Annotated[str, typer.Argument(help="category-id, as order-1042")]
OfCategory = Annotated[str | None, typer.Option(help="This category only")]
OfType = Annotated[str | None, typer.Option("--type", help="This type only")]
DoIt = Annotated[bool, typer.Option("--yes", help="Do it.")]
DeleteIt = Annotated[bool, typer.Option("--yes", help="Really delete it.")]
