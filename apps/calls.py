"""Calls of the HTTP services that a workspace's settings name, with its token."""

from __future__ import annotations

from http.client import HTTPException
from typing import Any
from urllib.request import Request

import orjson

from apps.access import bearing
from apps.settings import Settings
from eventstore.service_client import ServiceClient, opener_of


def asked(settings: Settings, part: str, path: str, *, timeout_s: float) -> tuple[int, Any] | None:
    """Return status and document of what the pipeline or the service answers at a path.

    None when it does not answer, or not in JSON.
    """
    url = settings.text(f"{part}.url")
    if not url:
        return None
    try:
        request = Request(f"{url}{path}", headers=bearing(settings, url))
        with opener_of(url).open(request, timeout=timeout_s) as answer:
            return answer.status, orjson.loads(answer.read())
    except (OSError, HTTPException, ValueError):
        return None


def service_client(settings: Settings) -> ServiceClient:
    """Return a client of a workspace's service. Raises `Misconfigured` for what is no address."""
    host = settings.text("service.host")
    host = f"[{host}]" if ":" in host else host
    url = settings.text("service.url") or f"http://{host}:{settings.number('service.port')}"
    return ServiceClient(url, bearing(settings, url))
