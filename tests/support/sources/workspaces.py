"""A workspace of a test's own beside the warm stack: commands and the keeper of connectors."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from apps.capture import capture_site
from apps.cli import build
from apps.settings import Settings, load
from cdc.connect import ConnectClient
from cdc.connectors import replication_name
from cdc.declarations import FOLDER
from cdc.upkeep.connector_keeper import ConnectorKeeper
from cdc.upkeep.slot_guard import SlotMetrics
from lake.layout import Lake


class Workspace:
    """Runs commands in a folder; an error of ours is raised as it is."""

    def __init__(self, folder: Path, stack: Settings, **settings: str) -> None:
        self.folder = folder
        self.name = f"w{uuid.uuid4().hex[:8]}"
        # Topics are the source's own, and all tests share one broker.
        self.source = f"shop_{uuid.uuid4().hex[:8]}"
        keys = ("postgres.dsn", "kafka.bootstrap", "registry.url", "connect.url")
        found = {key: stack.required(key) for key in keys} | settings
        # Written with its whole name, a setting may stand beside others of its section.
        lines = [f'workspace.name = "{self.name}"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in found.items()]
        (folder / "penstock.toml").write_text("\n".join(lines))

    def __call__(self, *arguments: str, code: int = 0) -> Any:
        command = ["source", *arguments, "--workspace", str(self.folder), "--json"]
        result = CliRunner().invoke(build(), command)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    @property
    def settings(self) -> Settings:
        """The workspace's settings."""
        return load(self.folder)

    @property
    def lake(self) -> Lake:
        """The workspace's lake."""
        return Lake.at(self.settings.lake)

    @property
    def connector(self) -> str:
        """Name of the connector of `source`."""
        return f"{self.name}-{self.source}"

    @property
    def replication(self) -> str:
        """Name of the slot and of the publication of `source`."""
        return replication_name(self.name, self.source)

    @property
    def file(self) -> Path:
        """The declaration of `source`."""
        return self.folder / FOLDER / f"{self.source}.toml"


class Kept:
    """A keeper of connectors that looks when a test says so."""

    def __init__(self, workspace: Workspace) -> None:
        self._settings = workspace.settings
        self._name = workspace.source
        self.registry = CollectorRegistry()
        self.keeper = ConnectorKeeper(
            capture_site(workspace.settings), workspace.lake, SlotMetrics(self.registry)
        )

    def look(self) -> str:
        """Look once, at what failed before, too; return the state of the workspace's source."""
        self.keeper.forget_pauses()
        with ConnectClient(self._settings.required("connect.url")) as connect:
            self.keeper.look(connect)
        return self.keeper.states.get(self._name, "")

    def metric(self, name: str, **labels: str) -> float | None:
        """Return the value of a gauge of the workspace's source."""
        return self.registry.get_sample_value(name, {"source": self._name, **labels})
