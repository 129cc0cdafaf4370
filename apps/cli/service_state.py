"""What of a running service wants a person: deliveries and deciders that their files stopped."""

from __future__ import annotations

import time
from typing import Any

from apps.cli.client import ServiceClient
from apps.settings import Settings
from kernel.errors import PenstockError

_BEGIN_S = 5.0
_PAUSE_S = 0.1
_TOLD = {
    "stopped": "delivery {name} is stopped: {reason}",
    "outdated": "delivery {name} goes on as its file was before: {reason}",
}


def complaints(found: Settings, *, begun: bool = False) -> list[str]:
    """Return a line for each thing that does not work though the service is ready.

    With `begun` deliveries that are just starting are waited for, for some seconds. A service that
    is not ready says so by itself, and has no lines here.
    """
    limit = time.monotonic() + (_BEGIN_S if begun else 0.0)
    with ServiceClient(found) as client:
        while True:
            try:
                health = client.get("/health/ready")
            except PenstockError:
                return []
            starting = any(each["state"] == "starting" for each in health["deliveries"])
            if not starting or time.monotonic() > limit:
                return lines_of(health)
            time.sleep(_PAUSE_S)


def lines_of(health: dict[str, Any]) -> list[str]:
    """Return what the answer of `/health/ready` has for a person."""
    lines = [
        _TOLD[each["state"]].format(name=each["name"], reason=each["reason"])
        for each in health["deliveries"]
        if each["state"] in _TOLD
    ]
    if health["deciders"]["state"] == "outdated":
        lines.append(f"deciders stay as they were before: {health['deciders']['reason']}")
    return lines
