"""A newcomer's stack: a workspace of its own, brought up and down by README's commands."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.console import Command, run
from tests.support.services.port_blocks import PortBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A workspace with everything running, and the environment in which commands are typed."""

    workspace: Path
    environment: Mapping[str, str]


@pytest.fixture(scope="package")
def newcomer() -> Iterator[Newcomer]:
    """Run `penstock up`, with service and pipeline, for all pages; `penstock down` at the end."""
    workspace = Path(tempfile.mkdtemp(prefix="penstock newcomer "))
    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PENSTOCK_WORKSPACE": str(workspace),
    }
    up = Command(text=f"penstock up --port-base {PortBlock.NEWCOMER:d}", expected=None)
    down = Command(text="penstock down", expected=None)
    try:
        run(up, folder=workspace, environment=environment)
        yield Newcomer(workspace=workspace, environment=environment)
    finally:
        run(down, folder=workspace, environment=environment)
        shutil.rmtree(workspace, ignore_errors=True)
