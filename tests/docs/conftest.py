"""Somebody new at the running stack: README and the pages are tried on it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.services.waiting import until
from tests.support.services.whole_stack import WholeStack, traced_calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """A workspace with everything running, and the environment in which commands are typed.

    `traced` has a line for each function of the walkthrough that any of its processes has called.
    """

    workspace: Path
    environment: Mapping[str, str]
    traced: Path


@pytest.fixture
def newcomer(whole_stack: Path) -> Newcomer:
    """Return somebody whose shell finds `penstock` and the workspace, where all is well.

    Other tests kill parts of the same stack: what they had come back from is over first.
    """
    stack = WholeStack(whole_stack, "")

    def is_ready() -> bool:
        return bool(stack.command("status", code=None)["state"] == "ready")

    until(is_ready, "all of the stack is ready", deadline_s=100)
    programs = Path(sys.executable).parent
    traced, tracing = traced_calls(whole_stack)
    environment = {
        **os.environ,
        **tracing,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PENSTOCK_WORKSPACE": str(whole_stack),
    }
    return Newcomer(workspace=whole_stack, environment=environment, traced=traced)
