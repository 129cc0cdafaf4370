"""Check a machine for what the local stack needs: required, found, fix."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line of the doctor. `fix` is what to do when it is not ok."""

    name: str
    required: str
    found: str
    ok: bool
    fix: str | None = None

    def document(self) -> dict[str, object]:
        """Return the check for JSON."""
        return {
            "name": self.name,
            "required": self.required,
            "found": self.found,
            "ok": self.ok,
            "fix": self.fix,
        }


def examine(path: Path, *, ports: Mapping[str, int], min_free_bytes: int) -> list[Check]:
    """Return all checks for a workspace at `path`."""
    found = ".".join(map(str, sys.version_info[:3]))
    free = shutil.disk_usage(path if path.exists() else Path.cwd()).free
    return [
        Check(name="python", required="3.11", found=found, ok=sys.version_info >= (3, 11)),
        Check(
            name="disk",
            required=str(min_free_bytes),
            found=str(free),
            ok=free >= min_free_bytes,
            fix="Free disk space" if free < min_free_bytes else None,
        ),
    ]
