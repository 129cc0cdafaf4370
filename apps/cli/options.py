"""The two options that every command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

WorkspaceOption = Annotated[
    Path | None, typer.Option("--workspace", "-w", help="The workspace (default: this folder).")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Answer with one JSON document.")]
