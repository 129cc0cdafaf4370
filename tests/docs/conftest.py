"""A newcomer: somebody who types README's commands, with the stack running."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A workspace with everything running, and the environment in which commands are typed."""

    workspace: Path
    environment: Mapping[str, str]


@pytest.fixture
def newcomer(whole_stack: Path) -> Newcomer:
    """Return somebody whose shell finds `penstock` and the workspace."""
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PENSTOCK_WORKSPACE": str(whole_stack),
    }
    return Newcomer(workspace=whole_stack, environment=environment)
