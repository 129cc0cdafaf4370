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
from stack.status import status

_BEGIN_S, _PAUSE_S = 5.0, 0.1
_ANSWER_S, _HUNG_S = 5.0, 0.5


def standing_still(settings: Settings) -> list[Standstill]:
    """Ask the stack for its parts, then the pipeline and the service for what is in them."""
    found = of_parts(status(settings.workspace))
    hung = {each.name for each in found}
    for part, read in (("pipeline", of_pipeline), ("service", of_service)):
        # Whoever did not answer the supervisor three times is not waited for once more.
        told = account(settings, part, timeout_s=_HUNG_S if part in hung else _ANSWER_S)
        found += read(told or {})
    # The pipeline names servers that do not answer it, as the supervisor does: once is enough.
    once: dict[tuple[str, str], Standstill] = {}
    for each in found:
        once.setdefault((each.component, each.name), each)
    return [*once.values()]


def of_parts(stack: Mapping[str, Any]) -> list[Standstill]:
    """Read what the stack's supervisor says: parts that it gave up, or that do not answer."""
    if stack["supervisor"] is None:
        return []
    return [
        Standstill(
            component="part",
            name=part["name"],
            cause=f"{part['state']}: {part['reason'] or 'its process is gone'}",
            command=f"penstock restart {part['name']}",
            lasting=part["state"] == "failed",
        )
        for part in stack["parts"]
        if part["state"] in ("failed", "unready")
    ]


def while_starting(settings: Settings, part: str) -> list[str]:
    """Say in lines what keeps the pipeline or the service from being ready, in its own words."""
    state = account(settings, part)
    if state is None:
        return [f"{part} does not answer yet"]
    read = of_pipeline if part == "pipeline" else of_service
    ingest = state.get("ingest", {})
    begins = f"ingest is starting: {ingest.get('reason')}"
    return [*([begins] if ingest.get("state") == "starting" else []), *map(str, read(state))]


def account(
    settings: Settings, part: str, *, timeout_s: float = _ANSWER_S
) -> Mapping[str, Any] | None:
    """Return what the pipeline or the service says of itself; None when it does not answer."""
    answer = asked(settings, part, "/health/ready", timeout_s=timeout_s)
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
