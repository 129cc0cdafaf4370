"""What the running pipeline and service say of themselves, asked over HTTP: `/health/ready`.

It is asked for here alone, so that status, doctor, wait and commands say the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from apps.calls import asked
from apps.settings import Settings
from service.standstills import Standstill, of_pipeline, of_service

_BEGIN_S, _PAUSE_S = 5.0, 0.1


def standing_still(settings: Settings) -> list[Standstill]:
    """Ask the pipeline and the service. One that does not answer is shown as a part instead."""
    found = [*of_pipeline(account(settings, "pipeline") or {})]
    return [*found, *of_service(account(settings, "service") or {})]


def account(settings: Settings, part: str) -> Mapping[str, Any] | None:
    """Return what the pipeline or the service says of itself; None when it does not answer."""
    answer = asked(settings, part, "/health/ready", timeout_s=5.0)
    if answer is None:
        return None
    state: Mapping[str, Any] = answer[1]
    return state


def after_start(settings: Settings) -> list[Standstill]:
    """Ask the service that has just started, once its deliveries have begun, or after seconds."""
    limit = time.monotonic() + _BEGIN_S
    while True:
        state = account(settings, "service") or {}
        starting = any(each["state"] == "starting" for each in state.get("deliveries", ()))
        if not starting or time.monotonic() > limit:
            return of_service(state)
        time.sleep(_PAUSE_S)
