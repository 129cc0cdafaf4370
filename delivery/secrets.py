"""Secrets are named in files, never written into them."""

from __future__ import annotations

import os
from pathlib import Path

from kernel.errors import Misconfigured

FORM = r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$"


def secret(reference: str, workspace: Path) -> str:
    """Return what `env:VARIABLE` or `file:PATH` (relative to the workspace) stands for.

    Raises `Misconfigured`, without the value, when it is not to be had.
    """
    kind, _, name = reference.partition(":")
    if kind == "env":
        found = os.environ.get(name, "")
        if not found:
            raise Misconfigured(
                f"the environment variable {name} is not set",
                remedy=f"Set {name} in the environment of the service and restart it.",
            )
        return found
    try:
        found = (workspace / name).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"the secret's file {name} cannot be read: {type(error).__name__}",
            remedy="Write the secret into that file, readable for its owner alone, then save the "
            "delivery's file again.",
        ) from error
    if not found:
        raise Misconfigured(f"the secret's file {name} is empty")
    return found
