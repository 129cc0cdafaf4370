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
from tests.docs.walkthrough import CHAINS, chain
from tests.support.services.port_blocks import PortBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A workspace with everything running, and the environment in which commands are typed.

    `traced` has a line for each function of the walkthrough that any of its processes has called.
    """

    workspace: Path
    environment: Mapping[str, str]
    traced: Path


def traced_functions() -> set[str]:
    """Return the functions of the walkthrough as `module:qualified.name`."""
    return {
        f"{step.file.removesuffix('.py').replace('/', '.')}:{step.function}"
        for name in CHAINS
        for step in chain(name)
        if step.file is not None
    }


@pytest.fixture(scope="package")
def newcomer() -> Iterator[Newcomer]:
    """Run `penstock up`, with service and pipeline, for all pages; `penstock down` at the end."""
    workspace = Path(tempfile.mkdtemp(prefix="penstock newcomer "))
    programs = Path(sys.executable).parent
    traced = workspace.with_name(f"{workspace.name} calls")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent / "traced"),
        "TRACED_CALLS": str(traced),
        "TRACED_FUNCTIONS": " ".join(sorted(traced_functions())),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PENSTOCK_WORKSPACE": str(workspace),
    }
    up = Command(text=f"penstock up --port-base {PortBlock.NEWCOMER:d}", expected=None)
    down = Command(text="penstock down", expected=None)
    try:
        run(up, folder=workspace, environment=environment)
        yield Newcomer(workspace=workspace, environment=environment, traced=traced)
    finally:
        run(down, folder=workspace, environment=environment)
        shutil.rmtree(workspace, ignore_errors=True)
        traced.unlink(missing_ok=True)
