"""Settings: one typed object from flags, environment, `penstock.toml`, the running stack, defaults.

Precedence, first wins: explicit override, environment `PENSTOCK_SECTION_KEY`, `penstock.toml`,
the endpoints that a running local stack has written to `.penstock/endpoints.json` and the token
that was made for the workspace (`.penstock/token`), default.
An unknown key is an error that names the nearest known one.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from kernel.errors import Misconfigured, NotFound
from lake.layout import lake_root
from stack.workspace import Workspace, owner_if_another

ENDPOINTS_FILE = Path(".penstock/endpoints.json")
TOKEN_FILE = Path(".penstock/token")
CONFIG_FILE = "penstock.toml"

DEFAULTS: Mapping[str, object] = {
    "workspace.name": "local",
    "postgres.dsn": "",
    "kafka.bootstrap": "",
    "kafka.topic_prefix": "",
    "kafka.partitions": 2,
    "kafka.max_record_bytes": 32 * 1024**2,
    "registry.url": "",
    "connect.url": "",
    "service.host": "127.0.0.1",
    "service.port": 7070,
    "service.auth": "token",
    "service.token": "",
    "service.hosts": "",
    "service.max_body_bytes": 4 * 1024 * 1024,
    "service.max_event_bytes": 256 * 1024,
    "service.max_events": 1_000,
    "service.max_json_depth": 64,
    "service.max_tags": 16,
    "service.max_page": 1_000,
    "service.max_subscriptions": 50,
    "service.max_streams": 500,
    "service.max_connections": 800,
    "service.max_header_bytes": 32 * 1024,
    "service.feed_memory_bytes": 32 * 1024 * 1024,
    "service.lookup_memory_bytes": 256 * 1024 * 1024,
    "service.old_snapshot_seconds": 3_600,
    "service.slow_client_seconds": 30,
    "service.idle_client_seconds": 10,
    "service.request_seconds": 60,
    "service.import_silence_seconds": 60,
    "service.standby_seconds": 1,
    "service.import_chunk_events": 500,
    "service.decider_processes": 4,
    "service.decider_memory_bytes": 512 * 1024 * 1024,
    "service.decider_seconds": 5,
    "service.url": "",
    "pipeline.host": "127.0.0.1",
    "pipeline.port": 7071,
    "pipeline.url": "",
    "pipeline.max_records_per_epoch": 120_000,
    "pipeline.lane_records": 20_000,
    "pipeline.executor": "auto",
    "pipeline.driver_bytes": 32 * 1024**2,
    "pipeline.driver_memory": "1536m",
    "pipeline.state_memory_bytes": 256 * 1024**2,
    "pipeline.lateness_seconds": 600,
    "pipeline.ahead_seconds": 86_400,
    "pipeline.lease_seconds": 10,
    "pipeline.standstill_seconds": 60,
    "pipeline.standstill_end_seconds": 900,
    "capture.slot_alarm_bytes": 2 * 1024**3,
    "capture.copy_readers": 2,
    "verify.rows_per_second": 2_000,
    "stack.background_niceness": 5,
    "spark.master": "local[2]",
    "replay.spark_master": "local[2]",
    "lake.path": "lake",
    "lake.fold_freshness_ms": 400,
    "lake.retention_days": 7,
    "lake.current_retention_bytes": 20 * 1024**3,
    "schemas.mode": "infer",
    "storage.min_free_bytes": 2 * 1024**3,
}
"""Every setting with its default; `docs/reference/settings.md` describes each."""

_FOR_EVER_S = 36_500 * 86_400
_ANY_NUMBER = 0, 2**53
_SOME, _SOME_TIME = (1, 2**53), (1, _FOR_EVER_S)
"""Of these nothing at all would refuse every call, or have a loop never rest."""
BOUNDS: Mapping[str, tuple[int, int]] = {
    "kafka.partitions": (1, 10_000),
    "service.port": (0, 65_535),
    "service.max_body_bytes": _SOME,
    "service.max_event_bytes": _SOME,
    "service.max_events": _SOME,
    "service.max_json_depth": _SOME,
    "service.max_page": _SOME,
    "service.max_connections": _SOME,
    "service.max_header_bytes": _SOME,
    "service.slow_client_seconds": _SOME_TIME,
    "service.idle_client_seconds": _SOME_TIME,
    "service.request_seconds": _SOME_TIME,
    "service.import_silence_seconds": _SOME_TIME,
    "service.import_chunk_events": _SOME,
    "service.decider_memory_bytes": _SOME,
    "service.decider_seconds": _SOME_TIME,
    "service.decider_processes": (1, 1_000),
    "pipeline.port": (0, 65_535),
    "pipeline.max_records_per_epoch": (1, 2**31),
    "pipeline.lane_records": (1, 2**31),
    "pipeline.lateness_seconds": (0, _FOR_EVER_S),
    "pipeline.ahead_seconds": (0, _FOR_EVER_S),
    "pipeline.lease_seconds": (1, 86_400),
    "pipeline.standstill_seconds": (1, _FOR_EVER_S),
    "pipeline.standstill_end_seconds": (1, _FOR_EVER_S),
    "capture.copy_readers": (1, 1_000),
    "stack.background_niceness": (-20, 19),
    "lake.retention_days": (1, 36_500),
}
"""The least and the greatest value of numbers that others would do harm with, or end in nonsense:
what is kept for less than no time is removed."""

_MASTER, _OF_SPARK = "spark.master", "spark."
"""Every further key of Spark's goes to Spark as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One effective value and where it came from (flag, environment, file, stack, default)."""

    value: object
    origin: str


class Settings:
    """The effective settings of one workspace. Read by key: `settings.text("kafka.bootstrap")`."""

    def __init__(self, workspace: Path, values: Mapping[str, Setting]) -> None:
        self.workspace = workspace
        self.values = dict(values)

    def text(self, key: str) -> str:
        """Return a setting as text. Raises `Misconfigured` for a list."""
        found = self.values[key]
        if isinstance(found.value, list):
            written = ",".join(map(str, found.value))
            raise Misconfigured(
                f"{key} must be one text, found a list ({found.origin})",
                remedy=f'Write it with commas: {key.partition(".")[2]} = "{written}"',
            )
        return str(found.value)

    def number(self, key: str) -> int:
        """Return a whole-number setting. Raises `Misconfigured` for one outside of its bounds."""
        value = self.values[key].value
        remedy = f"Mend it there; what holds now: penstock config show {key}"
        least, most = BOUNDS.get(key, _ANY_NUMBER)
        try:
            number = int(str(value))
        except ValueError:
            raise Misconfigured(
                f"{key} must be a whole number, found '{value}' ({self.values[key].origin})",
                remedy=remedy,
            ) from None
        if not least <= number <= most:
            raise Misconfigured(
                f"{key} must be from {least} to {most}, found {number} ({self.values[key].origin})",
                remedy=remedy,
            )
        return number

    def spark(self) -> dict[str, str]:
        """Return the settings that are Spark's own, as Spark writes them."""
        return {
            key: str(each.value).lower() if isinstance(each.value, bool) else str(each.value)
            for key, each in self.values.items()
            if key.startswith(_OF_SPARK) and key != _MASTER
        }

    def required(self, key: str) -> str:
        """Return a text setting that must not be empty.

        Raises `Misconfigured` with the two ways to provide it.
        """
        value = self.text(key)
        if not value.strip():
            origin = self.values[key].origin
            raise Misconfigured(
                f"{key} is not set and no local stack is running in {self.workspace}"
                if origin == "default"
                else f"{key} is empty ({origin})",
                remedy=f"Start the stack with: penstock up. Or set {key} in {CONFIG_FILE}.",
            )
        return value

    @property
    def name(self) -> str:
        """The workspace's name: part of slot, consumer and connector names."""
        return self.text("workspace.name")

    @property
    def lake(self) -> str:
        """Where the Delta tables lie: a folder's path or the URI of an object store's prefix.

        Raises `Misconfigured` for a scheme that no lake can have.
        """
        return lake_root(self.text("lake.path"), base=self.workspace)

    @property
    def state_dir(self) -> Path:
        """Where the local stack keeps what is its own (`.penstock`)."""
        return self.workspace / ".penstock"

    @property
    def ahead(self) -> timedelta:
        """How far ahead of the clock an event time may be and still move a watermark."""
        return timedelta(seconds=self.number("pipeline.ahead_seconds"))

    @property
    def lateness(self) -> timedelta:
        """How late an event may be and still correct results by itself, unless a source says."""
        return timedelta(seconds=self.number("pipeline.lateness_seconds"))


def load(workspace: Path | None = None, **overrides: object) -> Settings:
    """Gather the settings of `workspace` (default: `PENSTOCK_WORKSPACE`, else this folder).

    `overrides` name keys with `__` for the dot: `service__port=0`.
    Raises `Misconfigured` for an unknown key or an unreadable file.
    """
    root = root_of(workspace)
    values = {key: Setting(value=value, origin="default") for key, value in DEFAULTS.items()}
    values |= _known(_endpoints(root), origin="running stack")
    if token := kept_token(root):
        values["service.token"] = Setting(value=token, origin=str(TOKEN_FILE))
    values |= _known(_file(root / CONFIG_FILE), origin=CONFIG_FILE)
    values |= _known(_environment(os.environ), origin="environment")
    flags = {key.replace("__", "."): value for key, value in overrides.items() if value is not None}
    values |= _known(flags, origin="flag")
    given = values["service.token"]
    if isinstance(given.value, str):
        # From a file, or a secret of a cluster, it often comes with the end of its line.
        values["service.token"] = replace(given, value=given.value.strip())
    return Settings(root, values)


def root_of(workspace: Path | None) -> Path:
    """Return the folder of a workspace: the named one, `PENSTOCK_WORKSPACE`, or this folder.

    Raises `NotFound` for a link that leads to itself, and where this folder was removed.
    """
    named = workspace or os.environ.get("PENSTOCK_WORKSPACE") or "."
    try:
        return Path(os.path.expanduser(named)).resolve()
    except (OSError, RuntimeError) as error:
        raise NotFound(
            f"the folder '{named}' leads nowhere: it was removed, or is a link to itself",
            remedy="Go to a folder that is there, or name the workspace: -w DIR",
        ) from error


def kept_token(workspace: Path) -> str:
    """Return the token that was made for a workspace, nothing where none was.

    Raises `Misconfigured` for a file of somebody else's.
    """
    path = workspace / TOKEN_FILE
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise Misconfigured(
            f"the workspace's token cannot be read: {why}",
            remedy="Work as the user who started the service, or set PENSTOCK_TOKEN.",
        ) from error


def _known(found: Mapping[str, object], *, origin: str) -> dict[str, Setting]:
    unknown = [key for key in found if key not in DEFAULTS and not key.startswith(_OF_SPARK)]
    if unknown:
        near = [
            *dict.fromkeys(n for k in unknown for n in difflib.get_close_matches(k, DEFAULTS, 1))
        ]
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        one = len(unknown) == 1
        raise Misconfigured(
            f"unknown setting{'' if one else 's'} {', '.join(unknown)} from {origin}{hint}",
            remedy=f"Rename {'it, or take it' if one else 'them, or take them'} out of {origin}. "
            "All settings and their meaning: docs/reference/settings.md",
        )
    return {key: Setting(value=value, origin=origin) for key, value in found.items()}


def _endpoints(root: Path) -> dict[str, object]:
    path = root / ENDPOINTS_FILE
    try:
        if Workspace.at(root).supervisor_pid() is None:
            # A stack that was killed leaves the file, and its ports may be another workspace's now.
            return {}
        loaded = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        whose = owner_if_another(path) or "its user"
        raise Misconfigured(
            f"the stack of {root} runs as {whose}, and {path} is closed to others",
            remedy=f"Work as {whose}, or in a workspace of your own: -w DIR",
        ) from error
    except (ValueError, RecursionError):
        loaded = None
    if not isinstance(loaded, dict):
        return {}  # What a full disk left of it: `penstock up` writes it anew.
    return {key: value for key, value in loaded.items() if key in DEFAULTS}


def _file(path: Path) -> dict[str, object]:
    if not path.exists():
        return {}
    try:
        parsed = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Misconfigured(
            f"{path} is not valid TOML: {error}",
            remedy="Mend the line that is named: sections are [name], texts stand in quotes.",
        ) from error
    flat: dict[str, object] = {}
    for section, content in parsed.items():
        if not isinstance(content, dict):
            raise Misconfigured(
                f"{path}: {section} must be a section, as [{section}]",
                remedy=f"Write {section} = … without quotes about its name."
                if "." in section
                else f"Write [{section}] on a line of its own, and its settings beneath.",
            )
        flat |= _flat(section, content)
    return flat


def _flat(section: str, content: Mapping[str, object]) -> dict[str, object]:
    """Name the values below a section: a key with dots in it is a table of its own in TOML."""
    flat: dict[str, object] = {}
    for key, value in content.items():
        name = f"{section}.{key}"
        flat |= _flat(name, value) if isinstance(value, dict) else {name: value}
    return flat


def _environment(environ: Mapping[str, str]) -> dict[str, object]:
    names = {"PENSTOCK_" + key.replace(".", "_").upper(): key for key in DEFAULTS}
    found: dict[str, object] = {
        key: environ[name] for name, key in names.items() if name in environ
    }
    if "PENSTOCK_TOKEN" in environ:
        found["service.token"] = environ["PENSTOCK_TOKEN"]
    return found
