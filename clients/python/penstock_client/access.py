"""Where a client finds the token that the service asks for, when its user gives none."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

_TOKEN_FILE = Path(".penstock/token")
_CONFIG_FILE = "penstock.toml"


def found_token(url: str, workspace: str | os.PathLike[str] | None) -> str:
    """Return the token for a service; nothing where none is found.

    First `PENSTOCK_TOKEN`; then that of the workspace, if the service runs on this machine: its
    `penstock.toml` (`service.token`), or the file that the service has made. The workspace is the
    given one, `PENSTOCK_WORKSPACE`, or the nearest folder from the present one upwards that has
    either file.
    """
    if token := os.environ.get("PENSTOCK_TOKEN", "").strip():
        return token
    if not _is_local(url):
        return ""
    named = workspace if workspace is not None else os.environ.get("PENSTOCK_WORKSPACE")
    if named:
        return _token_in(Path(named))
    present = Path.cwd()
    for folder in (present, *present.parents):
        if (folder / _CONFIG_FILE).exists() or (folder / _TOKEN_FILE).exists():
            return _token_in(folder)
    return ""


def _token_in(folder: Path) -> str:
    try:
        section = tomllib.loads((folder / _CONFIG_FILE).read_text(encoding="utf-8-sig")).get(
            "service", {}
        )
        if isinstance(section, dict) and section.get("token"):
            return str(section["token"]).strip()
    except (OSError, ValueError):
        pass  # The service itself complains of its settings.
    try:
        return (folder / _TOKEN_FILE).read_text().strip()
    except OSError:
        return ""


def _is_local(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
