"""A second pipeline over the lake of a running stack, as on another machine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from cdc.sources import SECRETS
from tests.support.services.port_blocks import PortBlock
from tests.support.services.whole_stack import WholeStack

_PORT = PortBlock.WHOLE + 450
_SERVERS = ("postgres.dsn", "kafka.bootstrap", "registry.url", "connect.url", "service.url")


@dataclass
class SecondPipeline:
    """A process of its own in a workspace of its own, which says how it is at `url`."""

    process: subprocess.Popen[bytes]
    url: str
    token: str

    def health(self) -> dict[str, Any]:
        """Return what it says of itself; empty while it does not answer."""
        try:
            answer = httpx.get(
                f"{self.url}/health/ready",
                headers={"authorization": f"Bearer {self.token}"},
                trust_env=False,
            )
        except httpx.HTTPError:
            return {}
        return dict(answer.json())

    def ingest(self) -> str:
        """Return the state of its ingest."""
        return str(self.health().get("ingest", {}).get("state", "dead"))

    def kill(self) -> None:
        """End it as a power cut does, its Java with it."""
        for each in [psutil.Process(self.process.pid), *self._children()]:
            each.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


@contextmanager
def second_pipeline(stack: WholeStack, folder: Path, **variables: str) -> Iterator[SecondPipeline]:
    """Start one beside the stack's own; it is ended with the block."""
    workspace = folder / "another machine"
    workspace.mkdir()
    # With the secrets: who cannot look at a database does not restart what captures it.
    for shared in ("penstock.toml", "sources", SECRETS):
        place = stack.workspace / shared
        if place.is_dir():
            shutil.copytree(place, workspace / shared)
        elif place.exists():
            shutil.copy(place, workspace / shared)
    settings = stack.settings
    told = {name: settings.required(name) for name in _SERVERS} | {
        "lake.path": settings.lake,
        "workspace.name": settings.name,
        "service.token": settings.text("service.token"),
        "pipeline.port": str(_PORT),
    }
    env = {f"PENSTOCK_{name.upper().replace('.', '_')}": value for name, value in told.items()}
    with (folder / "second.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "apps.pipeline"],
            cwd=workspace,
            env={**os.environ, **env, **variables, "PENSTOCK_WORKSPACE": str(workspace)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        second = SecondPipeline(process, f"http://127.0.0.1:{_PORT}", told["service.token"])
        try:
            yield second
        finally:
            if process.poll() is None:
                second.kill()
