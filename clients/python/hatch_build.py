"""Has the sync client made while the package is built, from the repository or from an sdist."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SyncClientHook(BuildHookInterface):
    """Runs `generate_sync.py`, which lies beside it in both."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write `penstock_client/_sync` before its files are gathered."""
        runpy.run_path(str(Path(self.root) / "generate_sync.py"))["generate"]()
